"""TensorRT's element types, by name: the enumeration of whichever TensorRT is in use has the same names."""

from __future__ import annotations

from typing import Any

from artifact.dtypes import DType

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
    """The type that a ``trt.DataType`` stands for; None for one that no artifact has (fp8, int4)."""
    return _DTYPES.get(data_type.name)


def trt_from_dtype(trt: Any, dtype: DType) -> Any:
    """The ``trt.DataType`` of ``dtype``, which is one of those above."""
    return getattr(trt.DataType, _TRT_NAMES[dtype])
