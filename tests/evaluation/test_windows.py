"""Windows of a text as llama-perplexity takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.errors import SettingError
from hybridge.evaluation.windows import first_scored, shared_tokenizer, token_windows
from hybridge.runtime.text import Tokenizer
from tests.runtime.text.tokenizer_files import SENTENCES, byte_fallback_tokenizer, byte_level_tokenizer


def test_the_second_half_is_scored() -> None:
    assert first_scored(512) == 256 and first_scored(7) == 3
    assert first_scored(2) == 0 and first_scored(3) == 1


def test_windows_follow_one_another_and_the_rest_is_dropped(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level_tokenizer(tmp_path, add_bos=False))
    ids = tokenizer.encode(SENTENCES[0])
    assert len(ids) > 20
    found = token_windows(tokenizer, SENTENCES[0], 10, None, "text")
    assert np.concatenate(found).tolist() == ids[: len(ids) // 10 * 10] and {len(w) for w in found} == {10}
    assert len(token_windows(tokenizer, SENTENCES[0], 10, 1, "text")) == 1
    (short,) = token_windows(tokenizer, SENTENCES[0], 10_000, None, "text")
    assert short.tolist() == ids and short.dtype == np.int64


def test_each_window_begins_with_bos_where_texts_do(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level_tokenizer(tmp_path))
    ids = tokenizer.encode(SENTENCES[0])
    found = token_windows(tokenizer, SENTENCES[0], 10, None, "text")
    assert {int(window[0]) for window in found} == {tokenizer.bos_token_id}
    assert found[0].tolist() == ids[:10] and found[1][1:].tolist() == ids[11:20]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1)])
def test_texts_of_fewer_than_two_tokens_are_refused(tmp_path: Path, text: str, tokens: int) -> None:
    tokenizer = Tokenizer.from_folder(byte_level_tokenizer(tmp_path, add_bos=False))
    with pytest.raises(SettingError, match=f"^file: expected a text of at least 2 tokens, found {tokens}: give a"):
        token_windows(tokenizer, text, 512, None, "file")


def test_two_folders_need_the_same_tokenizer(tmp_path: Path) -> None:
    one, two = byte_level_tokenizer(tmp_path / "one"), byte_level_tokenizer(tmp_path / "two")
    assert shared_tokenizer(one, two).encode("sea") == Tokenizer.from_folder(one).encode("sea")
    byte_fallback_tokenizer(two)
    with pytest.raises(SettingError, match=r"two: expected the tokenizer of .*one, found another one"):
        shared_tokenizer(one, two)
    (two / "tokenizer.json").unlink()
    with pytest.raises(SettingError, match=r"two: expected a tokenizer, found no tokenizer.json"):
        shared_tokenizer(one, two)
