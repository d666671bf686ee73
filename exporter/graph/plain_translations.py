"""ATen operators that ONNX has under another name.

torch.onnx has translations of its own for them, the same nodes; but it loads those of all 1,000 ATen operators at
once, which takes as long as translating a model. With these the decoder needs none of them (see lean_export).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.onnx_opset import opset24

from hybridge.artifact.errors import ExportError

# The recorder passes symbolic tensors, which the generated signatures do not know.
op: Any = opset24


def plain_translations() -> Mapping[Any, Callable[..., Any]]:
    """Entries of torch.onnx.export's custom translation table."""
    aten = torch.ops.aten
    return {
        aten.add.Tensor: _add,
        aten.cat.default: _cat,
        aten.div.Tensor: _div,
        aten.embedding.default: _embedding,
        aten.mul.Tensor: _mul,
        aten.relu.default: _relu,
        aten.sigmoid.default: _sigmoid,
        aten.softplus.default: _softplus,
        aten.transpose.int: _transpose,
        aten.unsqueeze.default: _unsqueeze,
        aten.where.self: _where,
    }


def _operand(other: Any, x: Any) -> Any:
    """``other``; a number as a float32 constant of the file, so that an engine that widens x has all of it."""
    if not isinstance(other, (int, float)):
        return other
    number = op.Constant(value_float=float(other))
    return number if int(x.dtype) == int(ir.DataType.FLOAT) else op.Cast(number, to=int(x.dtype))


def _add(x: Any, other: Any, alpha: float = 1) -> Any:
    if alpha != 1:
        raise ExportError(f"add: expected alpha 1, found {alpha}: multiply first")
    return op.Add(x, _operand(other, x))


def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    return op.Concat(*tensors, axis=dim)


def _div(x: Any, other: Any) -> Any:
    return op.Div(x, _operand(other, x))


def _embedding(weight: Any, indices: Any, padding_idx: int = -1, *_training: Any) -> Any:
    return op.Gather(weight, indices)


def _mul(x: Any, other: Any) -> Any:
    return op.Mul(x, _operand(other, x))


def _relu(x: Any) -> Any:
    return op.Relu(x)


def _sigmoid(x: Any) -> Any:
    return op.Sigmoid(x)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    if beta != 1:
        raise ExportError(f"softplus: expected beta 1, found {beta}: scale its input")
    # Large inputs as they are: an engine may compute log(1 + exp(x)) as it stands, which overflows.
    return op.Where(op.Greater(x, float(threshold)), x, op.Softplus(x))


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    axes = list(range(len(x.shape)))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return op.Transpose(x, perm=axes)


def _unsqueeze(x: Any, dim: int) -> Any:
    return op.Unsqueeze(x, op.Constant(value_ints=[dim]))


def _where(condition: Any, x: Any, other: Any) -> Any:
    return op.Where(condition, x, other)
