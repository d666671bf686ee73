"""Create an engine by name; its libraries are imported only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from artifact.config import read_config
from artifact.errors import EngineError, UnsupportedError
from artifact.extras import install_command
from artifact.path_kind import require_artifact
from runtime.engines.base import Engine

AUTO = "auto"


@dataclass(frozen=True)
class EngineOptions:
    """What every engine may be asked for; ``threads`` counts CPU threads, None leaves the choice to the engine."""

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise EngineError(f"threads: expected an integer of at least 1, found {self.threads!r}")


@dataclass(frozen=True)
class EngineKind:
    """``check`` raises where the engine cannot be created whatever the artifact; ``create`` makes it."""

    check: Callable[[], None]
    create: Callable[[Path, EngineOptions], Engine]


def create_engine(artifact: str | Path, name: str = AUTO, options: EngineOptions | None = None) -> Engine:
    """The engine ``name`` over the artifact folder ``artifact``; "auto" takes the best one that is available.

    EngineError: an unknown or unavailable engine, or its library is not installed. ArtifactError: not an artifact.
    """
    check_engine(name)
    folder = Path(artifact)
    require_artifact(folder)
    read_config(folder)  # so that errors name the folder as it was given
    return _kind(name).create(folder, options or EngineOptions())


def check_engine(name: str) -> None:
    """Raise at once what ``create_engine`` would raise for the engine ``name`` with any artifact."""
    if name not in (AUTO, *ENGINES):
        raise EngineError(f"engine: expected one of {', '.join((AUTO, *ENGINES))}, found {name!r}")
    _kind(name).check()


def _kind(name: str) -> EngineKind:
    return ENGINES["onnxruntime" if name == AUTO else name]


def _onnxruntime(folder: Path, options: EngineOptions) -> Engine:
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(folder, threads=options.threads)


def _onnxruntime_portable(folder: Path, options: EngineOptions) -> Engine:
    from runtime.engines.onnxruntime.portable import PortableEngine

    return PortableEngine(folder, threads=options.threads)


def _need_onnxruntime() -> None:
    try:
        import onnxruntime  # noqa: F401 (only asks whether it is there, so that other import errors stay visible)
    except ImportError as error:
        raise EngineError(
            f"the onnxruntime engine needs the package onnxruntime, which cannot be imported ({error}): "
            f"{install_command('cpu')}"
        ) from error


def portable_unavailable() -> str | None:
    """Why the installed ONNX Runtime cannot run an artifact in its own form (it is too old), or None if it can."""
    _need_onnxruntime()
    import onnxruntime

    from runtime.engines.onnxruntime.kernels import ARTIFACT_OPSET, installed_kernels

    opset = installed_kernels().opset
    if opset >= ARTIFACT_OPSET:
        return None
    return f"onnxruntime {onnxruntime.__version__} stops at opset {opset}, artifacts have {ARTIFACT_OPSET}"


def _not_available_yet(name: str) -> EngineKind:
    def refuse(*_: object) -> NoReturn:
        raise UnsupportedError(f"the {name} engine is not available yet: use --engine onnxruntime")

    return EngineKind(refuse, refuse)


ENGINES: dict[str, EngineKind] = {
    "onnxruntime": EngineKind(_need_onnxruntime, _onnxruntime),
    "onnxruntime-portable": EngineKind(_need_onnxruntime, _onnxruntime_portable),
    "tensorrt": _not_available_yet("tensorrt"),
    "torch": _not_available_yet("torch"),
}
