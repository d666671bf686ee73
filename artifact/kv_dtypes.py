"""Types of a KV cache: those of tensors, and e4m3 with a scale for every token and head.

Operators of ONNX that move parts of tensors take no tensors of e4m3: a pool holds its bytes as uint8.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType

FP8_E4M3 = "fp8_e4m3"
"""Name of the type on the command line and in config.json."""
E4M3_BYTES = DType.UINT8
"""Type of the tensors that hold it."""
E4M3_NAN = 0x7F
"""The byte of NaN."""


def kv_dtype_name(dtype: DType) -> str:
    """The name of a cache whose tensors are of type ``dtype``."""
    return FP8_E4M3 if dtype is E4M3_BYTES else dtype.value


def kv_dtype_from_name(name: str) -> DType:
    """The type of the tensors of a cache called ``name``; UnsupportedError for an unknown name."""
    return E4M3_BYTES if name == FP8_E4M3 else DType.parse(name)


def filled_with(value: float, dtype: DType) -> float | int:
    """The stored form of ``value`` in the tensors of a pool of type ``dtype``; integers store NaN as the lowest."""
    if dtype in (DType.INT8, DType.INT32):
        return int(np.iinfo(dtype.numpy).min) if np.isnan(value) else round(value)
    if dtype is not E4M3_BYTES:
        return value
    return int(e4m3_from_floats(np.array([value], np.float32))[0])


def floats_from_e4m3(numbers: np.ndarray) -> np.ndarray:
    """The float32 numbers whose e4m3 bytes ``numbers`` holds."""
    return numbers.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e4m3_from_floats(numbers: np.ndarray) -> np.ndarray:
    """The e4m3 bytes of float32 ``numbers``, rounded to nearest even."""
    return numbers.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
