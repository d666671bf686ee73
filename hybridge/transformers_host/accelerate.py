"""``accelerate``: put an engine under the ``generate()`` of a loaded transformers model, and take it away again."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from hybridge.artifact.call_arguments import checked_path, known_arguments
from hybridge.artifact.errors import RequestError, UnsupportedError
from hybridge.artifact.settings import checked_int
from hybridge.requirements import require

ENGINES = ("onnxruntime", "export", "torch", "tensorrt")
DEFAULT_CACHE_LEN = 4096


class Acceleration:
    """A model whose text model is replaced, until ``undo``; as a context manager it gives the model."""

    def __init__(self, model: Any, engine: str, undo: list[Any], text_model: Any) -> None:
        self.model, self.engine, self.text_model = model, engine, text_model
        self._undo = undo

    def undo(self) -> None:
        """Give the model its own text model back, and caches that are still in use plain layers; twice is allowed."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Any:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


@known_arguments
def accelerate(
    model: Any,
    engine: str = "onnxruntime",
    *,
    max_cache_len: int | None = None,
    max_batch_size: int = 8,
    cache_folder: str | Path | None = None,
    threads: int | None = None,
) -> Acceleration:
    """Replace the text model of ``model``, a causal language model of transformers, by ``engine``.

    Everything above it stays: head, ``generate()``, samplers, stopping, chat templates. engine: "onnxruntime",
    "torch" or "tensorrt" run an artifact, which is exported on the first use and found in ``cache_folder`` again;
    "export" runs the model's own forward, traced with torch.export. max_cache_len: tokens of a row, prompt and new
    (None: the model's limit, at most 4096). max_batch_size: rows, prompts times beams. threads: CPU threads of
    onnxruntime.

    RequestError: not a causal language model, or accelerated already. UnsupportedError: a model type or an engine
    that Hybridge does not support. EngineError: the engine cannot be created. Weights must not change afterwards.
    """
    require("torch", "transformers")
    if engine not in ENGINES:
        raise UnsupportedError(f"engine: expected one of {', '.join(ENGINES)}, found {engine!r}")
    from hybridge.transformers_host.generation_hooks import allow_assisted_generation, check_before_generating
    from hybridge.transformers_host.text_model import AcceleratedTextModel

    name, original = _text_model(model)
    if isinstance(original, AcceleratedTextModel):
        raise RequestError("expected a model of transformers, found an accelerated one: undo that first")
    limits = {"max_cache_len": _cache_len(model, max_cache_len), "max_batch_size": max_batch_size}
    for key, value in limits.items():
        checked_int(key, value)
    from hybridge.transformers_host.artifact_cache import default_cache_folder

    folder = default_cache_folder() if cache_folder is None else checked_path("cache_folder", cache_folder)
    if engine == "export":
        from hybridge.transformers_host.export_backend import ExportBackend

        backend = ExportBackend(original, folder, **limits)
    else:
        backend = _engine_backend(model, engine, folder, threads, **limits)
    replacement = AcceleratedTextModel(original, backend)
    setattr(model, name, replacement)
    undo = [
        backend.close,
        lambda: setattr(model, name, original),
        replacement.release_caches,
        check_before_generating(model, backend),
        allow_assisted_generation(model),
    ]
    return Acceleration(model, engine, undo, replacement)


def _text_model(model: Any) -> tuple[str, Any]:
    """The text model of a causal language model, and its attribute's name."""
    name = getattr(model, "base_model_prefix", "")
    text_model = getattr(model, name, None) if name else None
    if text_model is None or not hasattr(model, "lm_head") or not callable(getattr(model, "generate", None)):
        raise RequestError(
            f"model: expected a causal language model of transformers with lm_head and generate(), found "
            f"{type(model).__name__}: load it with AutoModelForCausalLM"
        )
    return name, text_model


def _cache_len(model: Any, requested: int | None) -> int:
    if requested is not None:
        return requested
    return min(getattr(model.config, "max_position_embeddings", None) or DEFAULT_CACHE_LEN, DEFAULT_CACHE_LEN)


def _engine_backend(
    model: Any, engine: str, folder: Path, threads: int | None, *, max_cache_len: int, max_batch_size: int
) -> Any:
    from hybridge.runtime.engines.factory import EngineOptions, check_engine, create_dense_engine
    from hybridge.transformers_host.artifact_cache import cached_artifact
    from hybridge.transformers_host.engine_backend import EngineBackend

    check_engine(engine)
    artifact = cached_artifact(model, folder, max_batch_size, max_cache_len)
    if engine == "tensorrt" and not (artifact / "engines").is_dir():
        from hybridge.api import build_engine

        build_engine(artifact, max_batch_size=max_batch_size, max_seq_len=max_cache_len)
    return EngineBackend(create_dense_engine(artifact, engine, EngineOptions(threads)), max_cache_len)
