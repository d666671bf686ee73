"""Opens an engine of an artifact, and a loop over it, which does not depend on the artifact's layout."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.config import read_config
from hybridge.artifact.paged import PAGED
from hybridge.artifact.path_kind import require_artifact
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.factory import EngineOptions, check_engine, create_dense_engine
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings


def open_engine(folder: Path, name: str, options: EngineOptions) -> PagedEngine:
    """The engine ``name`` over the artifact in ``folder``; errors as in ``create_dense_engine``."""
    check_engine(name)
    require_artifact(folder)
    if read_config(folder).layout == PAGED:
        from hybridge.runtime.engines.paged_factory import create_paged_engine

        return create_paged_engine(folder, name, options)
    return as_paged(create_dense_engine(folder, name, options))


def as_paged(engine: DenseEngine | PagedEngine) -> PagedEngine:
    """``engine`` behind the interface of paged ones; every loop over a dense engine has its own pools."""
    from hybridge.runtime.engines.dense_as_paged import DenseAsPaged

    if isinstance(engine, DenseAsPaged):
        return DenseAsPaged(engine.dense)
    return engine if isinstance(engine, PagedEngine) else DenseAsPaged(engine)


def open_loop(engine: PagedEngine, settings: ServingSettings, text: ModelText) -> ServingLoop:
    """A serving loop with its own pools; EngineError when these cannot hold one sequence."""
    return ServingLoop(engine, settings, text.eos_token_ids, text.tokenizer)
