"""The runtime's use of TensorRT, full (10.x, 11.x) or RTX (1.x): load, create contexts, explain failures."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.artifact.untrusted_file import open_inside
from hybridge.trt_plugins.build.build_log import explain, make_logger
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.plugins import register_plugins
from hybridge.trt_plugins.plugins.errors import PluginErrors

PLUGIN_LAYER = "PLUGIN"


class RuntimeLibrary:
    """One TensorRT module, its logger and its runtime object."""

    def __init__(self, name: str, plugins: bool) -> None:
        """Import the module ``name`` and, for an engine with ``plugins``, register those of the project.

        EngineError: the library is missing or finds no usable GPU, or the plugins cannot be registered.
        """
        self._library = TensorRTLibrary(name)
        self.trt: Any = self._library.trt
        self.name, self.version = self._library.name, self._library.version
        self._logger = make_logger(self.trt, io.StringIO())
        self._plugin_errors = _register_plugins(self.trt) if plugins else PluginErrors()
        self._runtime: Any = self._attempt(lambda: self.trt.Runtime(self._logger), "start")
        self._cache: Any = None

    @property
    def label(self) -> str:
        """Name and version for messages."""
        return f"{self.name} {self.version}"

    def load(self, path: Path) -> Any:
        """The engine (trt.ICudaEngine) in ``path``; EngineError with TensorRT's reason when it refuses it."""
        # Mapped: TensorRT copies what it needs, so the process's memory holds no second copy.
        opened = open_inside(path.parent, path.name, None, EngineError, "build it again")
        with opened as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            self._check_validity(path, plan)
            return self._attempt(lambda: self._runtime.deserialize_cuda_engine(plan), f"load {path}")

    def create_context(self, engine: Any, fixed_shapes: bool) -> Any:
        """An execution context (trt.IExecutionContext) whose device memory the caller provides.

        fixed_shapes: it will run one shape many times, so that TensorRT-RTX compiles the kernels for that shape
        before the first run and not during it: a graph keeps the kernels that it was captured with.
        """
        strategy = self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._library.is_rtx:
            return self._attempt(lambda: self._rtx_context(engine, strategy, fixed_shapes), "create a context")
        return self._attempt(lambda: engine.create_execution_context(strategy), "create a context")

    def demand(self, call: Callable[[], Any], doing: str) -> None:
        """``call`` what answers False on failure; EngineError with the reason that a plugin or TensorRT gave."""
        self._attempt(lambda: call() or None, doing)

    def close(self) -> None:
        """Release the runtime, after every engine and context of it; calling it twice is allowed."""
        self._cache = None
        self._runtime = None

    def _rtx_context(self, engine: Any, strategy: Any, fixed_shapes: bool) -> Any:
        kinds = self.trt.DynamicShapesKernelSpecializationStrategy
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        config.dynamic_shapes_kernel_specialization_strategy = kinds.EAGER if fixed_shapes else kinds.LAZY
        # Contexts share what was compiled just in time.
        if self._cache is None:
            self._cache = config.create_runtime_cache()
        config.set_runtime_cache(self._cache)
        return engine.create_execution_context(config)

    def _check_validity(self, path: Path, plan: mmap.mmap) -> None:
        """TensorRT-RTX tells from the header whether it can load an engine; full TensorRT only tries."""
        if not self._library.is_rtx:
            return
        validity, problems = self._runtime.get_engine_validity(plan[: self._runtime.engine_header_size])
        if validity == self.trt.EngineValidity.INVALID:
            known = self.trt.EngineInvalidityDiagnostics.__members__
            names = [name for name, bit in known.items() if int(problems) & int(bit)]
            why = ", ".join(name.lower().replace("_", " ") for name in names) or "no reason given"
            raise EngineError(f"{self.label} cannot load {path} on this machine: {why}")

    def _attempt(self, call: Callable[[], Any], doing: str) -> Any:
        """The result of ``call``, which is None where TensorRT fails.

        EngineError with what a plugin raised in it, else with what TensorRT logged or raised.
        """
        self._logger.errors.clear()
        with self._plugin_errors.raised():
            try:
                result = call()
            except (RuntimeError, TypeError, ValueError, MemoryError) as error:
                reason = f"{error} ({explain(self._logger.errors)})" if self._logger.errors else str(error)
                raise EngineError(f"{self.label} cannot {doing}: {reason}") from error
            if result is None:
                raise EngineError(f"{self.label} cannot {doing}: {explain(self._logger.errors)}")
        return result


def has_plugins(layers: dict[str, int]) -> bool:
    """Whether an engine with ``layers`` (type -> count) calls plugins."""
    return any(name.startswith(PLUGIN_LAYER) for name in layers)


def _register_plugins(trt: Any) -> PluginErrors:
    """Register the project's plugins; the result collects the errors that they raise."""
    return register_plugins(trt).errors
