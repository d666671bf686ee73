"""The torch types that tensors of a network are computed in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError

# 4-bit numbers are stored in at least a byte each: torch has no type for them.
_TORCH: Mapping[DType, torch.dtype] = MappingProxyType(
    {
        DType.FLOAT32: torch.float32,
        DType.FLOAT16: torch.float16,
        DType.BFLOAT16: torch.bfloat16,
        DType.INT64: torch.int64,
        DType.INT32: torch.int32,
        DType.INT8: torch.int8,
        DType.UINT8: torch.uint8,
        DType.BOOL: torch.bool,
        DType.FLOAT8E4M3FN: torch.float8_e4m3fn,
        DType.INT4: torch.int8,
        DType.FLOAT4E2M1: torch.float32,
    }
)
_NARROW = (DType.FLOAT16, DType.BFLOAT16)


def torch_type(dtype: DType, widen: bool = False) -> torch.dtype:
    """The torch type for ``dtype``; ``widen``: float32 for 16-bit floats. EngineError if there is none."""
    if widen and dtype in _NARROW:
        return torch.float32
    if dtype not in _TORCH:
        raise EngineError(f"expected one of the tensor types {', '.join(d.value for d in _TORCH)}, found {dtype.value}")
    return _TORCH[dtype]
