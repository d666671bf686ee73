"""Modules that libraries import for other work than an export, run when something of them is first used.

torch.export and torch.onnx import most of torch with its compiler, and that the training on several GPUs, bindings of
CUDA and what Python's own modules are replaced with when they are compiled; onnxscript imports an optimizer with
reference operators in NumPy. An export calls none of these. They take 0.3 s.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Imported in the form that binds the module, not names in it. All but the first of torch change nothing outside
# themselves when they run; that one prepares compiling, so a process that compiles later must not defer it.
UNUSED = (
    "cuda.bindings.runtime",
    "onnx.compose",
    "onnx.serialization",
    "onnxscript.optimizer",
    "torch._dynamo.polyfills.loader",
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.quantization",
)
_LOCK = threading.RLock()


@contextmanager
def deferred_imports(names: Collection[str] = UNUSED) -> Iterator[None]:
    """Inside, an import of one of ``names`` that is not imported yet gives a module that runs at its first use.

    To one thread such a module differs in nothing but the time at which it runs, also after the context.
    """
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds modules of files as Python does, and has those of ``names`` run later."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader, self._names)
        return spec


class _DeferringLoader(Loader):
    """Makes modules that ``loader`` runs when a name is first asked for that is no module of ``names``."""

    def __init__(self, loader: Loader, names: Collection[str]) -> None:
        self.loader = loader
        self.names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _DeferredModule


class _DeferredModule(ModuleType):
    """A module with the names that importing sets; it runs when another is asked for."""

    def __getattr__(self, name: str) -> Any:
        loader = getattr(self.__spec__, "loader", None)
        module = f"{self.__name__}.{name}"
        if isinstance(loader, _DeferringLoader) and module in loader.names:
            return import_module(module)
        with _LOCK:
            _run(self)
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        with _LOCK:
            _run(self)
        return dir(self)


def _run(module: ModuleType | None) -> None:
    """Run ``module`` if it is deferred, and before it the packages that hold it, as an import does."""
    if not isinstance(module, _DeferredModule):
        return
    _run(sys.modules.get(module.__name__.rpartition(".")[0]))
    # The package may have run it.
    if isinstance(module, _DeferredModule):
        spec = module.__spec__
        assert spec is not None and isinstance(spec.loader, _DeferringLoader)
        deferring = spec.loader
        spec.loader = module.__loader__ = deferring.loader
        module.__class__ = ModuleType  # type: ignore[assignment]
        try:
            spec.loader.exec_module(module)
        except BaseException:
            # The next use tries again, and fails with the same error.
            spec.loader = module.__loader__ = deferring
            module.__class__ = _DeferredModule
            raise
