"""Streams and device pointers of other libraries as plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridge.artifact.errors import EngineError


def stream_handle(stream: object) -> int:
    """The CUstream of ``stream``: an integer, an object with ``__cuda_stream__`` (cuda.core, torch, cupy) or one
    with the attribute ``cuda_stream`` (torch), ``handle`` (pycuda) or ``ptr`` (cupy). None is the default stream.

    EngineError for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1] if callable(protocol) else protocol[1])
    for attribute in ("cuda_stream", "handle", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    return _integer(stream, "a CUDA stream (an integer, or an object with __cuda_stream__)")


def device_address(pointer: object) -> int:
    """The device address of ``pointer``: an integer, anything that ``int()`` takes (pycuda allocations, cuda.core
    handles), a tensor with ``data_ptr()`` or an array with ``__cuda_array_interface__``. None is the null pointer.

    EngineError for anything else.
    """
    if pointer is None:
        return 0
    if isinstance(pointer, int):
        return pointer
    if hasattr(pointer, "data_ptr"):
        return int(pointer.data_ptr())
    interface = getattr(pointer, "__cuda_array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    if hasattr(pointer, "handle"):
        pointer = pointer.handle
    return _integer(pointer, "a device pointer (an integer, or an object that int() takes)")


def device_addresses(pointers: Sequence[Any]) -> Sequence[int]:
    """The device address of each of ``pointers``; integers are taken as they are. EngineError as ``device_address``."""
    for pointer in pointers:
        if type(pointer) is not int:
            return [device_address(pointer) for pointer in pointers]
    return pointers


def _integer(value: object, expected: str) -> int:
    try:
        return int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise EngineError(f"expected {expected}, found {type(value).__name__}; pass its integer handle") from None
