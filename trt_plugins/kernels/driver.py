"""Calls of the CUDA driver with errors as exceptions."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from artifact.errors import EngineError

_INSTALL = "install the packages of hybridge's extra 'cuda' (cuda-core, cuda-bindings)"


@cache
def cuda_driver() -> ModuleType:
    """cuda.bindings.driver, initialised. EngineError where the package or a CUDA driver is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EngineError(f"CUDA kernels need cuda-bindings, which cannot be imported ({error}): {_INSTALL}") from error
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:  # no libcuda on this machine
        raise EngineError(f"expected a CUDA driver, found none ({error}): use a machine with an NVIDIA GPU") from error
    if int(result) != 0:
        raise EngineError(f"expected a CUDA GPU, found none ({result.name}): use a machine with an NVIDIA GPU")
    return driver


def checked(returned: tuple, doing: str) -> Any:
    """The value of a driver call, or EngineError saying what was being done and the driver's error."""
    result, *values = returned
    if int(result) != 0:
        raise EngineError(f"{doing}: the CUDA driver answers {result.name}")
    return values[0] if len(values) == 1 else tuple(values)
