"""From an artifact to an engine of its layout, and to a loop over it."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.errors import EngineError
from hybridge.artifact.paged import PAGED
from hybridge.artifact.path_kind import require_artifact
from hybridge.runtime.engines import Engine, create_engine
from hybridge.runtime.engines.factory import EngineOptions, check_engine
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.prefix_cache.settings import RADIX
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings


def open_engine(folder: Path, name: str, options: EngineOptions) -> Engine | PagedEngine:
    """The engine ``name`` for the layout of the artifact in ``folder``; errors as in ``create_engine``."""
    check_engine(name)
    require_artifact(folder)
    if read_config(folder).layout == PAGED:
        return create_paged_engine(folder, name, options)
    return create_engine(folder, name, options)


def open_paged_engine(folder: Path, name: str, options: EngineOptions) -> PagedEngine:
    """Like ``open_engine``; EngineError when the artifact's layout is not paged."""
    engine = open_engine(folder, name, options)
    if not isinstance(engine, PagedEngine):
        engine.close()
        raise EngineError(f"{folder}: expected layout paged, found {engine.config.layout}: export with --layout paged")
    return engine


def open_loop(engine: PagedEngine, settings: ServingSettings, text: ModelText) -> ServingLoop:
    """A serving loop with pools of its own; EngineError when these cannot hold one sequence."""
    return ServingLoop(engine, settings, text.eos_token_ids, text.tokenizer)


def refuse_paged_settings(settings: ServingSettings | None, config: RuntimeConfig) -> None:
    """EngineError where ``settings`` ask for candidates or a prefix tree; for an artifact of a layout that has none."""
    if settings is None:
        return
    asked = {"speculation": settings.speculation is not None, "prefix_cache": settings.cache.kind == RADIX}
    for name in (name for name, is_asked in asked.items() if is_asked):
        raise EngineError(
            f"{name}: expected an artifact of layout paged, found {config.layout}: export with --layout paged"
        )
