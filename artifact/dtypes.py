"""One table of element types and their names in NumPy, ONNX and safetensors."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np

from hybridge.artifact.errors import UnsupportedError


class DType(str, Enum):
    """An element type; the value is its name in config.json and on the command line."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"
    # Types of quantised weights. Two 4-bit numbers share a byte, the first in its low half.
    INT4 = "int4"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT4E2M1 = "float4e2m1"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type, through ml_dtypes where NumPy has none; numbers of 4 bits take a byte each there."""
        return _NUMPY[self]

    @property
    def onnx(self) -> int:
        """The value of ``onnx.TensorProto.DataType``."""
        return _ONNX[self]

    @property
    def safetensors(self) -> str:
        """The name in a safetensors header."""
        return _SAFETENSORS[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element of a NumPy array."""
        return int(self.numpy.itemsize)

    def nbytes(self, count: int) -> int:
        """Bytes of ``count`` elements in a file."""
        return (count + 1) // 2 if self in _FOUR_BITS else count * self.itemsize

    @property
    def is_floating(self) -> bool:
        """Whether it is a type to compute in."""
        return self in _FLOATING

    @classmethod
    def from_onnx(cls, value: int) -> DType:
        """The type of an ONNX data type value; UnsupportedError for any other."""
        return _lookup(_ONNX, value, "ONNX data type")

    @classmethod
    def from_safetensors(cls, name: str) -> DType:
        """The type of a safetensors name such as ``BF16``; UnsupportedError for any other."""
        return _lookup(_SAFETENSORS, name, "safetensors dtype")

    @classmethod
    def from_numpy(cls, dtype: np.dtype) -> DType:
        """The type of a NumPy dtype; UnsupportedError for any other."""
        return _lookup(_NUMPY, np.dtype(dtype), "NumPy dtype")

    @classmethod
    def named(cls, name: object) -> DType:
        """The type that a user names, also in short: "fp16", "half", "bf16", "fp32"; errors as for ``parse``."""
        return _SHORT[name] if isinstance(name, str) and name in _SHORT else cls.parse(name)

    @classmethod
    def parse(cls, name: object) -> DType:
        """The type named ``name``; UnsupportedError listing the known names otherwise."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(d.value for d in cls)
            raise UnsupportedError(f"expected one of the types {known}, found {name!r}") from None


_SHORT = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "half": DType.FLOAT16, "bf16": DType.BFLOAT16}

_NUMPY: dict[DType, np.dtype] = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT64: np.dtype(np.float64),
    DType.INT64: np.dtype(np.int64),
    DType.INT32: np.dtype(np.int32),
    DType.INT16: np.dtype(np.int16),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
    DType.INT4: np.dtype(ml_dtypes.int4),
    DType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
}
# Values of onnx.TensorProto.DataType; a test compares them with the onnx package.
_ONNX: dict[DType, int] = {
    DType.FLOAT32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.INT16: 5,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.BOOL: 9,
    DType.FLOAT16: 10,
    DType.FLOAT64: 11,
    DType.BFLOAT16: 16,
    DType.FLOAT8E4M3FN: 17,
    DType.INT4: 22,
    DType.FLOAT4E2M1: 23,
}
# The types of safetensors files; 4-bit numbers are stored as U8.
_SAFETENSORS: dict[DType, str] = {
    DType.FLOAT32: "F32",
    DType.FLOAT16: "F16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT64: "F64",
    DType.INT64: "I64",
    DType.INT32: "I32",
    DType.INT16: "I16",
    DType.INT8: "I8",
    DType.UINT8: "U8",
    DType.BOOL: "BOOL",
    DType.FLOAT8E4M3FN: "F8_E4M3",
}
_FLOATING = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64})
_FOUR_BITS = frozenset({DType.INT4, DType.FLOAT4E2M1})


def _lookup(table: dict, value: object, kind: str) -> DType:
    for dtype, name in table.items():
        if name == value:
            return dtype
    known = ", ".join(str(v) for v in table.values())
    raise UnsupportedError(f"expected one of the {kind}s {known}, found {value}")
