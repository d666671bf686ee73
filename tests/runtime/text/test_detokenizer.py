"""Streamed text is the decoded text, cut only between characters."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.byte_level import byte_from_character
from tests.runtime.text.test_tokenizer import texts
from tests.runtime.text.tokenizer_files import byte_fallback_tokenizer, byte_level_tokenizer
from tests.support.effort import examples

transformers = pytest.importorskip("transformers", reason="transformers is the oracle")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level_tokenizer(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_fallback_tokenizer(tmp_path_factory.mktemp("byte_fallback"))


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True, context: tuple[int, ...] = ()) -> list[str]:
    detokenizer = tokenizer.detokenizer(context, skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def test_the_alphabet_is_that_of_byte_level_bpe() -> None:
    from tokenizers import decoders, pre_tokenizers

    alphabet = byte_from_character()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet()) and len(set(alphabet.values())) == 256
    spelling = {byte: character for character, byte in alphabet.items()}
    text = "aé你🐳\n"
    assert decoders.ByteLevel().decode([spelling[byte] for byte in text.encode()]) == text


@settings(max_examples=examples(200), deadline=None)
@given(ids=st.lists(st.integers(0, 403), max_size=30), skip=st.booleans())
def test_any_byte_level_tokens_stream_to_what_transformers_decodes(
    byte_level: Path, ids: list[int], skip: bool
) -> None:
    oracle = _transformers_tokenizer(byte_level)
    pieces = stream(Tokenizer.from_folder(byte_level), ids, skip)
    assert "".join(pieces) == oracle.decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(200), deadline=None)
@given(text=texts, skip=st.booleans())
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streamed_text_is_what_transformers_decodes(
    kind: str, request: pytest.FixtureRequest, text: str, skip: bool
) -> None:
    folder = request.getfixturevalue(kind)
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids, skip)
    assert "".join(pieces) == _transformers_tokenizer(folder).decode(ids, skip_special_tokens=skip)
    # The text has no replacement character of its own, so none may be shown.
    assert "\ufffd" in text or "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_character_of_several_tokens_appears_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = Tokenizer.from_folder(request.getfixturevalue(kind))
    ids = tokenizer.encode("𝄞", add_special_tokens=False)
    assert len(ids) >= 4
    shown = [piece for piece in stream(tokenizer, ids) if piece]
    assert shown[-1].endswith("𝄞") and "".join(shown).strip() == "𝄞"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_an_incomplete_character_is_flushed_as_a_replacement(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = Tokenizer.from_folder(request.getfixturevalue(kind))
    ids = tokenizer.encode("world𝄞", add_special_tokens=False)[:-1]
    *pieces, last = stream(tokenizer, ids)
    assert "".join(pieces) == "world" and set(last) == {"\ufffd"}
    assert "".join([*pieces, last]) == tokenizer.decode(ids)


def test_the_space_between_prompt_and_continuation_is_part_of_the_text(byte_fallback: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_fallback)
    prompt, continuation = (tokenizer.encode(text, add_special_tokens=False) for text in ("Call", "me"))
    assert tokenizer.decode(continuation) == "me"
    assert "".join(stream(tokenizer, continuation, context=tuple(prompt))) == " me"


def test_bytes_that_never_become_text_are_not_buffered_without_limit(byte_fallback: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_fallback)
    broken = tokenizer.encode("𝄞", add_special_tokens=False)[-1]
    detokenizer = tokenizer.detokenizer()
    assert any(detokenizer.push(broken) for _ in range(40))


def test_streams_of_one_tokenizer_do_not_share_state(byte_level: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level)
    ids = tokenizer.encode("𝄞é", add_special_tokens=False)
    first, second = tokenizer.detokenizer(), tokenizer.detokenizer()
    texts = ["", ""]
    for token in ids:
        texts[0] += first.push(token)
        texts[1] += second.push(token)
    assert texts == ["𝄞é", "𝄞é"]


def test_an_added_token_outside_the_alphabet_stands_for_itself(byte_level: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level)
    ids = tokenizer.encode("a▁pad▁<think>", add_special_tokens=False)
    assert len(ids) == 3 and "".join(stream(tokenizer, ids)) == "a▁pad▁<think>"


_ORACLES: dict[Path, Any] = {}


def _transformers_tokenizer(folder: Path) -> Any:
    if folder not in _ORACLES:
        _ORACLES[folder] = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return _ORACLES[folder]
