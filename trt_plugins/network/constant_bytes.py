"""The bytes of a constant of a TensorRT network, also of types that the Python binding does not show as an array."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError


class _Weights(ctypes.Structure):
    """``nvinfer1::Weights``, the first thing that a ``trt.Weights`` points to."""

    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def constant_bytes(weights: Any, dtype: DType) -> bytes | memoryview:
    """The bytes of ``IConstantLayer.weights`` of ``dtype``, in C order; numbers of 4 bits are packed.

    An array comes as it is. Of bfloat16, fp8 and 4 bits the binding shows type, count and size alone: their address is
    read from the object, and what lies beside it has to be that type and count. EngineError where it is not.
    """
    if isinstance(weights, np.ndarray):
        return np.ascontiguousarray(weights).data.cast("B") if weights.size else b""
    if weights.size == 0:
        return b""
    # pybind11 keeps the pointer to its C++ object right behind the head of the Python object.
    pointer = ctypes.c_void_p.from_address(id(weights) + object.__basicsize__).value
    found = _Weights.from_address(pointer) if pointer else _Weights()
    if (found.type, found.count) != (int(weights.dtype), weights.size) or not found.values:
        raise EngineError(
            f"expected {weights.size} weights of {weights.dtype.name} behind the object of TensorRT's Python binding, "
            "found something else: install the version of TensorRT in requirements/constraints.txt"
        )
    return ctypes.string_at(found.values, dtype.nbytes(weights.size))
