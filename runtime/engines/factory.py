"""Create an engine by name; its libraries are imported only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from artifact.errors import ArtifactError, EngineError, UnsupportedError
from runtime.engines.base import Engine

AUTO = "auto"


@dataclass(frozen=True)
class EngineOptions:
    """What every engine may be asked for; ``threads`` counts CPU threads, None leaves the choice to the engine."""

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise EngineError(f"threads: expected an integer of at least 1, found {self.threads!r}")


def create_engine(artifact: str | Path, name: str = AUTO, options: EngineOptions | None = None) -> Engine:
    """The engine ``name`` over the artifact folder ``artifact``; "auto" takes the best one that is available.

    EngineError: an unknown or unavailable engine, or its library is not installed. ArtifactError: not an artifact.
    """
    if name not in (AUTO, *ENGINES):
        raise EngineError(f"engine: expected one of {', '.join((AUTO, *ENGINES))}, found {name!r}")
    folder = Path(artifact)
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: expected a folder written by hybridge export, found none")
    return ENGINES["onnxruntime" if name == AUTO else name](folder, options or EngineOptions())


def _onnxruntime(folder: Path, options: EngineOptions) -> Engine:
    _need_onnxruntime()
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(folder, threads=options.threads)


def _need_onnxruntime() -> None:
    try:
        import onnxruntime  # noqa: F401 (only asks whether it is there, so that other import errors stay visible)
    except ImportError as error:
        raise EngineError(
            f"the onnxruntime engine needs the package onnxruntime, which cannot be imported ({error}): "
            "pip install 'hybridge[cpu]'"
        ) from error


def _not_available_yet(name: str) -> Callable[[Path, EngineOptions], Engine]:
    def refuse(folder: Path, options: EngineOptions) -> Engine:
        raise UnsupportedError(f"the {name} engine is not available yet: use --engine onnxruntime")

    return refuse


def portable_unavailable() -> str | None:
    """Why the installed ONNX Runtime cannot run an artifact in its own form (it is too old), or None if it can."""
    _need_onnxruntime()
    import onnxruntime

    from runtime.engines.onnxruntime.kernels import ARTIFACT_OPSET, installed_kernels

    opset = installed_kernels().opset
    if opset >= ARTIFACT_OPSET:
        return None
    return f"onnxruntime {onnxruntime.__version__} stops at opset {opset}, artifacts have {ARTIFACT_OPSET}"


def _onnxruntime_portable(folder: Path, options: EngineOptions) -> Engine:
    _need_onnxruntime()
    from runtime.engines.onnxruntime.portable import PortableEngine

    return PortableEngine(folder, threads=options.threads)


ENGINES: dict[str, Callable[[Path, EngineOptions], Engine]] = {
    "onnxruntime": _onnxruntime,
    "onnxruntime-portable": _onnxruntime_portable,
    "tensorrt": _not_available_yet("tensorrt"),
    "torch": _not_available_yet("torch"),
}
