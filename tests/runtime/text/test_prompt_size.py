"""A text that cannot fit is refused after at most the work of one that fits."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import RequestError
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.prompt_size import tokens_within
from tests.runtime.text.tokenizer_files import byte_fallback_tokenizer, byte_level_tokenizer
from tests.support.effort import examples

KINDS = {"byte_level": byte_level_tokenizer, "byte_fallback": byte_fallback_tokenizer}


class CountingTokenizer(Tokenizer):
    """Counts the characters that it is given."""

    characters = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return CountingTokenizer.from_folder(KINDS[request.param](tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize("text", ["Some years ago. ", "\ud800", "𝄞", " "], ids=ascii)
def test_a_huge_text_is_refused_after_little_work(tokenizer: CountingTokenizer, text: str) -> None:
    huge, limit = text * (10_000_000 // len(text)), 512
    tokenizer.characters = 0
    with pytest.raises(RequestError, match=r"first: expected at most 512 tokens .*, found more in a text of"):
        tokens_within(tokenizer, huge, limit, "first", True)
    assert tokenizer.characters <= 4 << 14


@settings(max_examples=examples(200), deadline=None)
@given(
    unit=st.text(max_size=30) | st.sampled_from(["world ", " ", "purse,", "\n", "<|end|>", "Call me Ishmael. "]),
    count=st.integers(1, 20_000),
    over=st.integers(0, 3),
)
def test_no_text_that_fits_is_refused(tokenizer: CountingTokenizer, unit: str, count: int, over: int) -> None:
    text = (unit * count)[:100_000]
    ids = tokenizer.encode(text)
    assert tokens_within(tokenizer, text, max(1, len(ids) + over), "prompt", True) == ids


def test_a_text_of_long_tokens_fits(tmp_path: Path) -> None:
    # 33 characters for each token: far from ordinary text.
    folder = byte_level_tokenizer(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append({**data["added_tokens"][-1], "content": "<" + "long" * 8, "id": 402, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(folder)
    text = ("<" + "long" * 8) * 5000
    assert tokens_within(tokenizer, text, 5000, "prompt", False) == [402] * 5000
    with pytest.raises(RequestError, match="expected at most 600 tokens"):
        tokens_within(tokenizer, text, 600, "prompt", False)
