"""Shared by the ONNX forms of operators: the opset, constants, positions, the table of rotary angles."""

from __future__ import annotations

from typing import Any

import onnx
import torch
from onnxscript.onnx_opset import opset24

# The torch.library namespace of the operators in this folder.
NAMESPACE = "hybridge"
# The recorder passes symbolic tensors, which the generated signatures do not know.
op: Any = opset24

FLOAT, INT32, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64
ONNX_DTYPES = {
    torch.float32: FLOAT,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.int64: INT64,
    torch.int32: INT32,
}


def ints(*values: int) -> Any:
    """A constant int64 vector."""
    return op.Constant(value_ints=list(values))


def scalar(value: int) -> Any:
    """A constant int64 scalar."""
    return op.Constant(value_int=value)


def length(x: Any, axis: int) -> Any:
    """The extent of one axis as a scalar."""
    return op.Squeeze(op.Shape(x, start=axis, end=axis + 1), ints(0))


def positions(input_ids: Any, past_lengths: Any) -> Any:
    """Absolute positions [b, t] of the tokens input_ids [b, t] after past_lengths [b] int32."""
    past = op.Unsqueeze(op.Cast(past_lengths, to=INT64), ints(1))
    return op.Add(past, op.Range(scalar(0), length(input_ids, 1), scalar(1)))


def cast(x: Any, dtype: torch.dtype | int) -> Any:
    """``x`` in ``dtype``, as torch or as ONNX names it."""
    return op.Cast(x, to=ONNX_DTYPES[dtype] if isinstance(dtype, torch.dtype) else dtype)


def rotary_cos_sin(angles: Any, scaling: float, dtype: torch.dtype | int) -> tuple[Any, Any]:
    """cos and sin of ``angles``, times ``scaling``, in ``dtype``."""
    tables = []
    for table in (op.Cos(angles), op.Sin(angles)):
        if scaling != 1.0:
            table = op.Mul(table, op.Constant(value_float=scaling))
        tables.append(cast(table, dtype))
    return tables[0], tables[1]
