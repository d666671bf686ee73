"""Create an engine for a paged artifact by name; its libraries are imported only then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from hybridge.artifact.config import read_config
from hybridge.artifact.errors import located
from hybridge.artifact.path_kind import require_artifact
from hybridge.runtime.engines.factory import (
    AUTO,
    ONNXRUNTIME,
    TENSORRT,
    TENSORRT_NETWORK,
    TENSORRT_NETWORK_NATIVE,
    TORCH,
    EngineOptions,
    check_engine,
    choose_engine,
    with_reason,
)
from hybridge.runtime.engines.paged import PagedEngine


def create_paged_engine(artifact: str | Path, name: str = AUTO, options: EngineOptions | None = None) -> PagedEngine:
    """The engine ``name`` over the folder of a paged artifact; "auto" as in ``create_dense_engine``.

    EngineError: an engine that is unknown or unavailable, or the artifact's layout is another one. ArtifactError: not
    an artifact.
    """
    check_engine(name)
    folder = Path(artifact)
    require_artifact(folder)
    read_config(folder)  # so that errors name the folder as it was given
    options = options or EngineOptions()
    chosen, reason = choose_engine(folder, options) if name == AUTO else (name, None)
    options.check_engine_folder(chosen)
    with located(folder):
        engine = PAGED_ENGINES[chosen](folder, options)
    return with_reason(engine, chosen, reason)


def _onnxruntime(folder: Path, options: EngineOptions) -> PagedEngine:
    from hybridge.runtime.engines.onnxruntime.graph_cache import user_graph_cache
    from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine

    return OnnxRuntimePagedEngine(folder, options.threads, user_graph_cache(), options.exact_products)


def _onnxruntime_portable(folder: Path, options: EngineOptions) -> PagedEngine:
    from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine

    return PortablePagedEngine(folder, threads=options.threads)


def _tensorrt(folder: Path, options: EngineOptions) -> PagedEngine:
    from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine

    return TensorRTPagedEngine.from_folder(folder, options.engine_folder)


def _torch(folder: Path, options: EngineOptions) -> PagedEngine:
    from hybridge.runtime.engines.torch.library import set_threads
    from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

    set_threads(options.threads)
    return TorchPagedEngine(folder)


def _tensorrt_network(folder: Path, options: EngineOptions, native: bool = False) -> PagedEngine:
    from hybridge.runtime.engines.tensorrt_network.paged_engine import NativeNetworkPagedEngine, NetworkPagedEngine
    from hybridge.runtime.engines.torch.library import set_threads

    set_threads(options.threads)
    kind = NativeNetworkPagedEngine if native else NetworkPagedEngine
    return kind(folder, options.float32)


PAGED_ENGINES: Mapping[str, Callable[[Path, EngineOptions], PagedEngine]] = MappingProxyType(
    {
        ONNXRUNTIME: _onnxruntime,
        "onnxruntime-portable": _onnxruntime_portable,
        TENSORRT: _tensorrt,
        TENSORRT_NETWORK: _tensorrt_network,
        TENSORRT_NETWORK_NATIVE: partial(_tensorrt_network, native=True),
        TORCH: _torch,
    }
)
