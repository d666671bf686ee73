"""TensorRT's element types, by name: the enumeration of whichever TensorRT is in use has the same names."""

from __future__ import annotations

from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES

_TRT_NAMES = {
    DType.FLOAT32: "FLOAT",
    DType.FLOAT16: "HALF",
    DType.BFLOAT16: "BF16",
    DType.INT64: "INT64",
    DType.INT32: "INT32",
    DType.INT8: "INT8",
    DType.UINT8: "UINT8",
    DType.BOOL: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _TRT_NAMES.items()}


def dtype_from_trt(data_type: Any) -> DType | None:
    """The type of a ``trt.DataType``; None for one that no artifact has (fp8, int4)."""
    return _DTYPES.get(data_type.name)


def trt_from_dtype(trt: Any, dtype: DType) -> Any:
    """The ``trt.DataType`` of ``dtype`` in a network."""
    return getattr(trt.DataType, _TRT_NAMES[network_dtype(dtype)])


def network_dtype(dtype: DType) -> DType:
    """The type of a tensor in a network: the bytes of e4m3 are int8.

    TensorRT takes uint8 outputs of a network from casts alone, and does not build its own FP8 for GPUs before 8.9.
    """
    return DType.INT8 if dtype is E4M3_BYTES else dtype


def operator_dtype(data_type: Any) -> DType | None:
    """The type that an operator declares where a network has ``data_type``; no operator has int8 numbers."""
    found = dtype_from_trt(data_type)
    return None if found is E4M3_BYTES else E4M3_BYTES if found is DType.INT8 else found
