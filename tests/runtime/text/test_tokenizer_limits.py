"""No tokenizer.json ends the process or hangs it: known shapes are bounded, others run in a process with limits."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.limits import MIB
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.tokenizer_shape import LINEAR_PATTERNS, unbounded_part
from tests.runtime.text.tokenizer_files import byte_fallback_tokenizer, byte_level_tokenizer

BPE: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
LIMITS = ProcessLimits(seconds=1, memory=256 * MIB, request=MIB)


def content(**changes: Any) -> dict[str, Any]:
    return {"version": "1.0", "added_tokens": [], "model": BPE, **changes}


def precompiled(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def split(pattern: dict[str, str]) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def replace(pattern: str, text: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": text}


def adds(count: int) -> dict[str, Any]:
    pieces = [{"SpecialToken": {"id": "X", "type_id": 0}}] * count
    known = {"X": {"id": "X", "ids": [1] * count, "tokens": ["a"] * count}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": known}


# With the parts of tokenizer.json, how a panic, an abort or a bomb shows.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "aborts in the character map": (content(normalizer=precompiled(b"\xff" * 8)), "malformed|needs"),
    "panics at load": (content(normalizer=precompiled(b"\x01")), "the tokenizer is malformed"),
    "panics in the character map": (
        content(normalizer=precompiled(struct.pack("<I", 8) + b"\xff" * 8 + b"abc")),
        "prompt: .* fails on the text .*index out of bounds",
    ),
    "panics in merges": (content(model={**BPE, "continuing_subword_prefix": "#" * 10}), "is malformed .*out of range"),
    "doubles the text": (
        content(normalizer={"type": "Sequence", "normalizers": [replace("a", "a" * 10)] * 9}),
        r"prompt: the tokenizer \(normalizer: Replace\) needs more than 256 MiB of memory",
    ),
    "backtracks forever": (content(pre_tokenizer=split({"Regex": "(a+)+$"})), "prompt: .*(needs|retry-limit)"),
    "needs a token that is not there": (
        content(
            post_processor={
                **adds(1),
                "special_tokens": {},
            }
        ),
        "prompt: .* fails on the text",
    ),
    "adds tokens without end": (content(post_processor=adds(20_000)), "needs more than|malformed|fails"),
    "cuts chunks of nothing": (content(pre_tokenizer={"type": "FixedLength", "length": 0}), "must be non-zero"),
    "has an unknown part": (content(normalizer={"type": "Unheard of"}), "the tokenizer is malformed"),
    "has a part without a type": (content(decoder=[1]), "the tokenizer is malformed"),
    "has no model": (content(model=None), "the tokenizer is malformed"),
}


def opened(folder: Path, data: object, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    monkeypatch.setattr("hybridge.runtime.text.limited_tokenizer.LIMITS", LIMITS)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizers_are_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, sentence = HOSTILE[name]
    with pytest.raises((ArtifactError, RequestError), match=sentence) as caught:
        opened(tmp_path, data, monkeypatch).encode("a" * 40 + "b", add_special_tokens=True)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_decoder_that_panics_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = {"type": "Strip", "content": "a", "start": 2**64 - 1, "stop": 2**64 - 1}
    tokenizer = opened(tmp_path, content(decoder=decoder), monkeypatch)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: fails on tokens .*out of bounds"):
        tokenizer.decode([0, 1])
    assert tokenizer.encode("ab") == [2]


def test_a_tokenizer_in_a_child_gives_what_the_library_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = byte_fallback_tokenizer(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text())
    # A regular expression of its own, which does what a string would do.
    data["normalizer"]["normalizers"][1]["pattern"] = {"Regex": " "}
    assert unbounded_part(data) == "normalizer: Replace"
    tokenizer = opened(folder, data, monkeypatch)
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    for text in ("Call me Ishmael", "𝄞<s>world</s>", ""):
        ids = tokenizer.encode(text)
        assert ids == library.encode(text).ids
        assert tokenizer.decode(ids, False) == library.decode(ids, skip_special_tokens=False)
        detokenizer = tokenizer.detokenizer()
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == library.decode(ids)
    assert tokenizer.bos_token_id == library.token_to_id("<s>")
    assert tokenizer.content["model"] == json.loads(library.to_str())["model"]
    tokenizer.close()
    tokenizer.close()


@pytest.mark.parametrize("write", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_ordinary_tokenizers_need_no_child(write: Any, tmp_path: Path) -> None:
    assert unbounded_part(json.loads((write(tmp_path) / "tokenizer.json").read_text())) is None


@pytest.mark.parametrize(
    ("part", "value", "bounded"),
    [
        ("normalizer", {"type": "NFC"}, True),
        ("normalizer", replace(" ", "▁"), True),
        ("normalizer", replace("", "x"), False),
        ("normalizer", replace(" ", "▁▁"), False),
        ("normalizer", {"type": "Sequence", "normalizers": [replace("a", "bb")] * 2}, True),
        ("normalizer", {"type": "Sequence", "normalizers": [replace("a", "bb")] * 3}, False),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 62}, True),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 63}, False),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 17}, False),
        ("normalizer", {"type": "Replace", "pattern": 1, "content": "a"}, False),
        ("pre_tokenizer", split({"String": " "}), True),
        ("pre_tokenizer", split({"String": ""}), False),
        ("pre_tokenizer", split({"Regex": r"\p{N}{1,3}"}), True),
        ("pre_tokenizer", split({"Regex": r"\p{N}{1,3}+"}), False),
        ("pre_tokenizer", {"type": "FixedLength", "length": 1}, True),
        ("post_processor", adds(8), True),
        ("post_processor", adds(9), False),
        ("post_processor", {**adds(1), "special_tokens": {"X": 1}}, False),
        ("decoder", {"type": "Strip", "content": " ", "start": 1, "stop": 0}, True),
        ("decoder", {"type": "Strip", "content": " ", "start": 1, "stop": 1}, False),
        ("decoder", {"type": "Sequence"}, False),
        ("decoder", {"type": ["ByteLevel"]}, False),
        ("model", {"type": "Unigram", "vocab": [["a" * 1024, 0.0]]}, True),
        ("model", {"type": "Unigram", "vocab": [["a" * 1025, 0.0]]}, False),
        ("model", {"type": "WordPiece", "max_input_chars_per_word": 10**6}, False),
    ],
)
def test_bounded_shapes(part: str, value: object, bounded: bool) -> None:
    assert (unbounded_part(content(**{part: value})) is None) == bounded


def test_broken_json_is_an_artifact_error(tmp_path: Path) -> None:
    for text in ("[]", "{", "[" * 100_000, '"\\ud800"'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ArtifactError, match=r"tokenizer\.json: "):
            Tokenizer.from_folder(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(LINEAR_PATTERNS))
def test_known_patterns_are_linear(pattern: str) -> None:
    # Quadratic work on 300,000 characters would take minutes.
    process = LimitedProcess(
        ProcessLimits(seconds=20, memory=1024 * MIB, request=MIB),
        setup=("load", json.dumps(content(pre_tokenizer=split({"Regex": pattern}))), "tokenizer.json", []),
    )
    for unit in (
        " ",
        "\n",
        " \n",
        "A",
        "a",
        "aA",
        "1",
        "!",
        "'",
        "你",
        "\u0301",
        "\t ",
        "!\n",
        "/",
        "A'",
        "ʰ",
        "\u00a0",
    ):
        try:
            process.call("call", "encode", (unit * 300_000)[:300_000], False)
        except LimitError as error:
            pytest.fail(f"{pattern!r} on {unit!r}: {error}")
