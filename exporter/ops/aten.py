"""ONNX nodes of the few ATen operators that the decoder uses.

torch.onnx has its own translations, but builds shapes at run time from many small nodes. In the decoder every
symbolic axis (batch, seq, max_seq) keeps its position through a view or an expand, which ONNX can say with a constant
shape. It also loads the translations of all 1,000 ATen operators at once, which takes as long as translating a model;
with these the decoder needs none of them (trace/lean_export.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from hybridge.artifact.errors import ExportError
from hybridge.exporter.ops.onnx_nodes import FLOAT, ONNX_DTYPES, op

# ONNX Reshape: 0 copies the input's axis of the same position. ONNX Expand: 1 keeps the input's axis.
COPY_AXIS, KEEP_AXIS = 0, 1


def aten_translations() -> Mapping[Any, Callable[..., Any]]:
    """Entries of torch.onnx.export's custom translation table."""
    aten = torch.ops.aten
    return {
        aten.linear.default: _linear,
        aten.view.default: _view,
        aten.reshape.default: _view,
        aten.expand.default: _expand,
        aten.split_with_sizes.default: _split,
        aten.split.Tensor: _split_equal,
        aten.gather.default: _gather,
        aten.silu.default: _silu,
        aten.to.dtype: _to,
        aten.unflatten.int: _unflatten,
        aten.flatten.using_ints: _flatten,
        aten.chunk.default: _chunk,
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


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    return y if bias is None else op.Add(y, bias)


def _view(x: Any, size: Sequence[Any]) -> Any:
    return op.Reshape(x, op.Constant(value_ints=_static(x, size, COPY_AXIS)), allowzero=0)


def _expand(x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    return op.Expand(x, op.Constant(value_ints=_static(x, size, KEEP_AXIS)))


def _split(x: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    # The recorder needs num_outputs to know how many values there are; cleanup drops it together with the sizes.
    sizes = [int(n) for n in split_sizes]
    return op.Split(x, op.Constant(value_ints=sizes), axis=dim, num_outputs=len(sizes))


def _split_equal(x: Any, split_size: int, dim: int = 0) -> Any:
    width = int(x.shape[dim])
    return _split(x, [split_size] * (width // split_size), dim)


def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return _split(x, [int(x.shape[dim]) // chunks] * chunks, dim)


def _unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    shape = [_axis(n) for n in x.shape]
    dim %= len(shape)
    return op.Reshape(x, op.Constant(value_ints=[*shape[:dim], *sizes, *shape[dim + 1 :]]), allowzero=0)


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    shape = [_axis(n) for n in x.shape]
    start, end = start_dim % len(shape), end_dim % len(shape) + 1
    merged = prod(shape[start:end])
    if merged == COPY_AXIS:
        raise ExportError(f"axes {start} to {end - 1} of {x.shape} include a symbolic one: only static axes are merged")
    return op.Reshape(x, op.Constant(value_ints=[*shape[:start], merged, *shape[end:]]), allowzero=0)


def _axis(n: Any) -> int:
    """A static extent, or COPY_AXIS for a symbolic one (every symbolic axis comes before the reshaped ones)."""
    return n if isinstance(n, int) else COPY_AXIS


def _to(x: Any, dtype: torch.dtype | int, non_blocking: bool = False, copy: bool = False) -> Any:
    target = ONNX_DTYPES[dtype] if isinstance(dtype, torch.dtype) else dtype
    return x if int(x.dtype) == target else op.Cast(x, to=target)


def _gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    return op.GatherElements(x, index, axis=dim)


def _silu(x: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x))


def _static(x: Any, size: Sequence[Any], same: int) -> list[int]:
    """``size`` with every symbolic entry replaced by ``same``; its axis must be symbolic in ``x`` too."""
    result = []
    for axis, n in enumerate(size):
        if isinstance(n, int):
            if n == -1 and same == KEEP_AXIS:
                n = KEEP_AXIS
            result.append(n)
        elif axis < len(x.shape) and not isinstance(x.shape[axis], int):
            result.append(same)
        else:
            raise ExportError(
                f"axis {axis} of a view is symbolic but not an axis of its input: keep symbolic axes in place"
            )
    return result


def _operand(other: Any, x: Any) -> Any:
    """``other``; a number as a float32 constant of the file, so that an engine that widens x has all of it."""
    if not isinstance(other, (int, float)):
        return other
    number = op.Constant(value_float=float(other))
    return number if int(x.dtype) == FLOAT else op.Cast(number, to=int(x.dtype))


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
