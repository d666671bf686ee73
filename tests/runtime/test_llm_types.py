"""What type checkers make of calls of LLM: this file is checked by mypy with all others, and its calls run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.score import Score
from hybridge.runtime.turns import PieceStream
from tests.runtime.generation.toy_llm import toy_llm

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, kind: object) -> None:
        """The kind without what it holds, as far as it can be checked at run time."""
        kind = getattr(kind, "__origin__", kind)
        assert isinstance(value, kind)


def test_the_kind_of_prompt_decides_the_kind_of_answer(tmp_path: Path) -> None:
    llm: LLM = toy_llm(tmp_path)
    params = SamplingParams(max_tokens=2)
    assert_type(llm.generate("a", params), Generation)
    assert_type(llm.generate([1, 2], sampling_params=params), Generation)
    assert_type(llm.generate({"prompt_token_ids": [1]}, params), Generation)
    assert_type(llm.generate(["a", "b"], params, priority=0), list[Generation])
    assert_type(llm.generate([[1], [2]], max_tokens=2), list[Generation])
    assert_type(llm.generate("a", params, stream=True), PieceStream)
    assert_type(llm.generate(["a"], params, stream=True), PieceStream)
    assert_type(llm.score("ab"), Score)
    assert_type(llm.score([[1, 2], [3, 4]], [[5], [6]]), list[Score])
