"""The tokenizer reads a checkpoint's files as transformers does."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.runtime.text import Tokenizer
from tests.runtime.text.tokenizer_files import CONFIG, byte_fallback_tokenizer, byte_level_tokenizer
from tests.support.effort import examples

transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

KINDS = {"byte_level": byte_level_tokenizer, "byte_fallback": byte_fallback_tokenizer}
texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["<s>", "</s>", "<|end|>", "<think>", " ", "é", "👩‍👩‍👧", "🇫🇷", "▁", "\n", "world"]), max_size=8
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Our tokenizer and transformers' one of the same files."""
    folder = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    return Tokenizer.from_folder(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@settings(max_examples=examples(150), deadline=None)
@given(text=texts, add_special_tokens=st.booleans())
def test_ids_and_text_equal_transformers(pair: tuple[Tokenizer, Any], text: str, add_special_tokens: bool) -> None:
    ours, theirs = pair
    ids = ours.encode(text, add_special_tokens)
    assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)
    for skip in (False, True):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_named_tokens_equal_transformers(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert dict(ours.special_tokens) == theirs.special_tokens_map


def test_bos_follows_the_post_processor_only(tmp_path: Path) -> None:
    folder = byte_level_tokenizer(tmp_path, add_bos=False)
    # transformers ignores this flag too, when there is a tokenizer.json.
    (folder / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "add_bos_token": True}))
    tokenizer = Tokenizer.from_folder(folder)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert tokenizer.encode("Call") == theirs.encode("Call")
    assert tokenizer.bos_token_id not in tokenizer.encode("Call")


def test_stored_padding_and_truncation_are_ignored(tmp_path: Path) -> None:
    folder = byte_level_tokenizer(tmp_path)
    plain = Tokenizer.from_folder(folder).encode("Call me Ishmael")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert Tokenizer.from_folder(folder).encode("Call me Ishmael") == plain


def test_a_special_token_of_the_config_is_atomic_when_the_vocabulary_has_it(tmp_path: Path) -> None:
    folder = byte_level_tokenizer(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != "<|end|>"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    config = {**CONFIG, "extra_special_tokens": ["<|end|>", "<|unheard of|>"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("a<|end|>b", add_special_tokens=False)
    assert len(ids) == 3 and tokenizer.decode(ids) == "ab" and tokenizer.decode(ids, False) == "a<|end|>b"
    # An id beyond the model's embedding would be worse than several ordinary tokens.
    assert max(tokenizer.encode("<|unheard of|>")) < 402


def test_tokens_given_as_objects_and_in_the_legacy_map(tmp_path: Path) -> None:
    folder = byte_level_tokenizer(tmp_path)
    added = {"content": "</s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": added, "unk_token": None}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {**added, "content": "<|end|>"}}))
    assert dict(Tokenizer.from_folder(folder).special_tokens) == {"bos_token": "</s>", "eos_token": "<|end|>"}


def test_a_checkpoint_without_tokenizer_config_has_no_named_tokens(tmp_path: Path) -> None:
    folder = byte_level_tokenizer(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert dict(tokenizer.special_tokens) == {} and tokenizer.bos_token_id is None


def test_ids_outside_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level_tokenizer(tmp_path))
    ids = tokenizer.encode("world")
    assert tokenizer.decode([*ids, 99_999]) == "world"
    assert "".join(map(tokenizer.detokenizer().push, [*ids, 99_999])) == "world"


def test_bad_files_and_bad_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"expected the file .*tokenizer\.json, found none"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ArtifactError, match="the tokenizer is malformed"):
        Tokenizer.from_folder(tmp_path)
    folder = byte_level_tokenizer(tmp_path)
    with pytest.raises(RequestError, match="valid Unicode"):
        Tokenizer.from_folder(folder).encode("a\ud800b")
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json: expected a JSON object"):
        Tokenizer.from_folder(folder)
