"""Create an engine by name; its libraries are imported only then."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from hybridge.artifact.call_arguments import checked_path
from hybridge.artifact.config import DENSE, read_config
from hybridge.artifact.engine_record import ENGINES_FOLDER, TENSORRT_LIBRARIES
from hybridge.artifact.errors import EngineError, SettingError, located
from hybridge.artifact.extras import install_command
from hybridge.artifact.path_kind import require_artifact
from hybridge.artifact.settings import bad_value, check_settings, setting
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.paged import PagedEngine

AUTO, ONNXRUNTIME, TENSORRT, TORCH = "auto", "onnxruntime", "tensorrt", "torch"
TENSORRT_NETWORK, TENSORRT_NETWORK_NATIVE = "tensorrt-network", "tensorrt-network-native"
NETWORK_ENGINES = (TENSORRT_NETWORK, TENSORRT_NETWORK_NATIVE)
ENGINE_NAMES = (
    AUTO,
    ONNXRUNTIME,
    "onnxruntime-portable",
    TENSORRT,
    *NETWORK_ENGINES,
    TORCH,
)
E = TypeVar("E", DenseEngine, PagedEngine)
# More than any machine's processors: starting far more threads takes minutes and gigabytes.
MOST_THREADS = 1024


@dataclass(frozen=True)
class EngineOptions:
    """Options of every engine.

    threads: CPU threads, None leaves the choice to the engine. engine_folder: the TensorRT engine to run, a folder or
    the name of one in OUT/engines; None takes the one that fits this machine. exact_products: onnxruntime does
    not round the inputs of quantised weights to 8 bits; their products then take 3 to 40 times as long.
    float32: tensorrt-network computes 16-bit tensors in float32.
    """

    threads: int | None = setting(
        None,
        "CPU threads (one for single tokens of small models).",
        metavar="N",
        least=1,
        most=MOST_THREADS,
        shown_default="all",
        group="Engine",
    )
    engine_folder: str | Path | None = setting(
        None,
        "The TensorRT engine to run: a folder, or the name of one in OUT/engines.",
        metavar="DIR",
        shown_default="the one for this GPU",
        group="Engine",
    )
    exact_products: bool = setting(
        False, "Do not round inputs of quantised weights to 8 bits; slower (onnxruntime).", group="Engine"
    )
    float32: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.engine_folder is not None:
            checked_path("engine_folder", self.engine_folder)

    def check_engine_folder(self, engine: str) -> None:
        """SettingError if a TensorRT engine folder is given for another ``engine``, which would ignore it."""
        if self.engine_folder is not None and engine != TENSORRT:
            raise SettingError(
                f"engine_folder: expected none for the engine {engine}, found {str(self.engine_folder)!r}: leave it "
                f"out, or choose the engine {TENSORRT}"
            )


@dataclass(frozen=True)
class EngineKind:
    """``check`` raises if the engine cannot be created here for any artifact; ``create`` makes it."""

    check: Callable[[], None]
    create: Callable[[Path, EngineOptions], DenseEngine]


def create_dense_engine(artifact: str | Path, name: str = AUTO, options: EngineOptions | None = None) -> DenseEngine:
    """The engine ``name`` over the artifact folder ``artifact``.

    "auto" is tensorrt where the artifact has an engine for this machine's GPU, else onnxruntime; where engines were
    built but none fits, the engine's ``notes`` say why.
    EngineError: an unknown or unavailable engine, or its library is not installed. ArtifactError: not an artifact.
    """
    check_engine(name)
    folder = Path(artifact)
    require_artifact(folder)
    layout = read_config(folder).layout  # read here, so that errors name the folder as it was given
    if layout != DENSE:
        raise EngineError(
            f"{folder}: expected layout dense, found {layout}: its steps are those of a paged engine "
            '(hybridge.runtime.engines.paged_factory); export with `layout="dense"` for this one'
        )
    options = options or EngineOptions()
    chosen, reason = choose_engine(folder, options) if name == AUTO else (name, None)
    options.check_engine_folder(chosen)
    with located(folder):
        engine = ENGINES[chosen].create(folder, options)
    return with_reason(engine, chosen, reason)


def with_reason(engine: E, chosen: str, reason: str | None) -> E:
    """``engine``, with a note where ``chosen`` runs an artifact because no TensorRT engine can."""
    if reason is not None:
        engine.notes = (*engine.notes, f"{chosen} runs the artifact, as no TensorRT engine can ({reason})")
    return engine


def choose_engine(folder: Path, options: EngineOptions) -> tuple[str, str | None]:
    """The engine that "auto" selects for the artifact, and, if the artifact has engines, why not tensorrt."""
    if options.engine_folder is not None:
        return TENSORRT, None
    if not (folder / ENGINES_FOLDER).is_dir():
        return ONNXRUNTIME, None
    try:
        ENGINES[TENSORRT].check()
        from hybridge.runtime.engines.tensorrt.selection import find_engine

        find_engine(folder)
    except EngineError as error:
        return ONNXRUNTIME, str(error)
    return TENSORRT, None


def check_engine(name: str) -> None:
    """Raise at once what ``create_dense_engine`` would raise for the engine ``name`` with any artifact."""
    if name not in ENGINE_NAMES:
        raise bad_value("engine", f"one of {', '.join(ENGINE_NAMES)}", name)
    if name != AUTO:
        ENGINES[name].check()
        return
    try:
        ENGINES[ONNXRUNTIME].check()
    except EngineError as missing:
        try:
            ENGINES[TENSORRT].check()
        except EngineError:
            raise missing from None


def _onnxruntime(folder: Path, options: EngineOptions) -> DenseEngine:
    from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
    from hybridge.runtime.engines.onnxruntime.graph_cache import user_graph_cache

    return OnnxRuntimeEngine(folder, options.threads, user_graph_cache(), options.exact_products)


def _onnxruntime_portable(folder: Path, options: EngineOptions) -> DenseEngine:
    from hybridge.runtime.engines.onnxruntime.portable import PortableEngine

    return PortableEngine(folder, threads=options.threads)


def _need_onnxruntime() -> None:
    try:
        import onnxruntime  # noqa: F401 (only asks whether it is there, so that other import errors stay visible)
    except ImportError as error:
        raise EngineError(
            f"the onnxruntime engine needs the package onnxruntime, which cannot be imported ({error}): "
            f"{install_command('cpu')}"
        ) from error


def _tensorrt(folder: Path, options: EngineOptions) -> DenseEngine:
    from hybridge.runtime.engines.tensorrt import TensorRTEngine

    return TensorRTEngine.from_folder(folder, options.engine_folder)


def _need_tensorrt() -> None:
    from hybridge.runtime.engines.tensorrt.selection import check_machine

    check_machine()


def _tensorrt_network(folder: Path, options: EngineOptions, native: bool = False) -> DenseEngine:
    from hybridge.runtime.engines.tensorrt_network.engine import NativeNetworkEngine, NetworkEngine
    from hybridge.runtime.engines.torch.library import set_threads

    set_threads(options.threads)
    kind = NativeNetworkEngine if native else NetworkEngine
    return kind(folder, options.float32)


def _need_network() -> None:
    _need_torch()
    if not any(importlib.util.find_spec(name) is not None for name in TENSORRT_LIBRARIES):
        raise EngineError(
            f"the {TENSORRT_NETWORK} engine needs TensorRT's parser, found none of {', '.join(TENSORRT_LIBRARIES)}: "
            f"{install_command('rtx')}"
        )


def _torch(folder: Path, options: EngineOptions) -> DenseEngine:
    from hybridge.runtime.engines.torch.engine import TorchEngine
    from hybridge.runtime.engines.torch.library import set_threads

    set_threads(options.threads)
    return TorchEngine(folder)


def _need_torch() -> None:
    from hybridge.runtime.engines.torch.library import need_torch

    need_torch()


ENGINES: dict[str, EngineKind] = {
    ONNXRUNTIME: EngineKind(_need_onnxruntime, _onnxruntime),
    "onnxruntime-portable": EngineKind(_need_onnxruntime, _onnxruntime_portable),
    TENSORRT: EngineKind(_need_tensorrt, _tensorrt),
    TENSORRT_NETWORK: EngineKind(_need_network, _tensorrt_network),
    TENSORRT_NETWORK_NATIVE: EngineKind(_need_network, partial(_tensorrt_network, native=True)),
    TORCH: EngineKind(_need_torch, _torch),
}
