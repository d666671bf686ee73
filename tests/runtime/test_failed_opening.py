"""An engine that cannot be opened leaves nothing open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime import loaded_artifact
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.llm import LLM
from hybridge.runtime.serving import open_drafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.generation.toy_llm import VOCAB
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config

TOO_LITTLE = ServingSettings(block_size=4, memory_bytes=100)
BOTH = pytest.mark.parametrize("opened", [LLM, AsyncLLM])


class Drafter:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyPagedEngine:
    """What the name of an engine opens."""
    byte_level_tokenizer(tmp_path)
    engine = ToyPagedEngine(paged_config(HYBRID, vocab=VOCAB), max_tokens=32, max_rows=8)
    monkeypatch.setattr(loaded_artifact, "open_engine", lambda *_: engine)
    return engine


@BOTH
def test_an_engine_is_closed_when_its_pools_cannot_be_had(tmp_path: Path, engine: ToyPagedEngine, opened: type) -> None:
    with pytest.raises(EngineError, match="found 100"):
        opened(tmp_path, serving=TOO_LITTLE)
    assert engine.closed


@BOTH
def test_an_engine_that_was_passed_stays_open(tmp_path: Path, engine: ToyPagedEngine, opened: type) -> None:
    with pytest.raises(EngineError, match="found 100"):
        opened(tmp_path, engine, serving=TOO_LITTLE)
    assert not engine.closed


@BOTH
def test_a_drafter_is_closed_with_it(
    tmp_path: Path, engine: ToyPagedEngine, opened: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Drafter()
    monkeypatch.setattr(open_drafter, "with_opened_drafter", lambda *_: (TOO_LITTLE, drafter))
    with pytest.raises(EngineError, match="found 100"):
        opened(tmp_path, serving=replace(TOO_LITTLE, speculation=SpeculationSettings(2)))
    assert drafter.closed and engine.closed
