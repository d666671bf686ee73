"""The paged toy engine of an AsyncLLM."""

from pathlib import Path

import pytest

from tests.runtime.generation.toy_llm import paged_engine
from tests.runtime.toy_paged_engine import ToyPagedEngine


@pytest.fixture
def engine(tmp_path: Path) -> ToyPagedEngine:
    """A paged toy engine whose tokenizer is in ``tmp_path``."""
    return paged_engine(tmp_path)
