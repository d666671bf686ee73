"""Calls of the CUDA driver with errors as exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from hybridge.artifact.errors import EngineError

# Version of the driver interface to look up functions in.
_VERSION = 12000
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


@cache
def driver_function(name: str, arguments: int) -> Callable[..., int]:
    """The driver's function ``name``, whose arguments are so many ctypes.c_void_p, and which gives a CUresult.

    For what is called in every step: the bindings convert arguments anew in every call, which takes as long as a
    launch. EngineError when the driver does not have it.
    """
    returned = cuda_driver().cuGetProcAddress(name.encode(), _VERSION, 0)
    address, _ = checked(returned, f"finding {name}")
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * arguments)(int(address))


def result_name(code: int) -> str:
    """The name of a CUresult."""
    return str(cuda_driver().CUresult(code).name)


def checked(returned: tuple, doing: str) -> Any:
    """The value of a driver call, or EngineError saying what was being done and the driver's error."""
    result, *values = returned
    if int(result) != 0:
        raise EngineError(f"{doing}: the CUDA driver returned {result.name}")
    return values[0] if len(values) == 1 else tuple(values)
