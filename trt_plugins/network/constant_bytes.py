"""The bytes of a constant of a TensorRT network, also of types that the Python binding does not show as an array."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError


class _Weights(ctypes.Structure):
    """``nvinfer1::Weights``, which the C++ object of a ``trt.Weights`` begins with."""

    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def constant_bytes(weights: Any, dtype: DType) -> bytes | memoryview:
    """The bytes of ``IConstantLayer.weights`` of ``dtype``, in C order; numbers of 4 bits are packed.

    For bfloat16, fp8 and 4 bits the binding gives no array, only type, count and size: the address is read from the C++
    object. EngineError: the type and count beside it are not those of ``weights``.
    """
    if isinstance(weights, np.ndarray):
        return np.ascontiguousarray(weights).data.cast("B") if weights.size else b""
    if weights.size == 0:
        return b""
    # pybind11 keeps the pointer to its C++ object right after the head of the Python object.
    pointer = ctypes.c_void_p.from_address(id(weights) + object.__basicsize__).value
    found = _Weights.from_address(pointer) if pointer else _Weights()
    if (found.type, found.count) != (int(weights.dtype), weights.size) or not found.values:
        raise EngineError(
            f"expected {weights.size} weights of {weights.dtype.name} behind the object of TensorRT's Python binding, "
            "found something else: install the version of TensorRT in requirements/constraints.txt"
        )
    return ctypes.string_at(found.values, dtype.nbytes(weights.size))
