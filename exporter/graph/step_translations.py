"""ONNX nodes of the operators in step_ops (opset 24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
from onnxscript.onnx_opset import opset24

from hybridge.exporter.graph.onnx_types import ONNX_DTYPES
from hybridge.exporter.graph.standard_ops import NAMESPACE

# The recorder passes symbolic tensors, which the generated signatures do not know.
op: Any = opset24

INT64 = onnx.TensorProto.INT64


def step_translations() -> Mapping[Any, Callable[..., Any]]:
    """The custom translation table of torch.onnx.export for every operator of step_ops."""
    namespace = getattr(torch.ops, NAMESPACE)
    return {
        namespace.cache_slots.default: _cache_slots,
        namespace.attention_mask.default: _attention_mask,
        namespace.rotary_tables.default: _rotary_tables,
        namespace.last_token.default: _last_token,
        namespace.packed_rotary_tables.default: _packed_rotary_tables,
        namespace.selected_tokens.default: _selected_tokens,
    }


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _scalar(value: int) -> Any:
    return op.Constant(value_int=value)


def _length(x: Any, axis: int) -> Any:
    """The extent of one axis as a scalar."""
    return op.Squeeze(op.Shape(x, start=axis, end=axis + 1), _ints(0))


def _positions(input_ids: Any, past_lengths: Any) -> Any:
    """Absolute positions [b, t]."""
    past = op.Unsqueeze(op.Cast(past_lengths, to=INT64), _ints(1))
    return op.Add(past, op.Range(_scalar(0), _length(input_ids, 1), _scalar(1)))


def _cache_slots(input_ids: Any, context_lengths: Any, past_lengths: Any, cache: Any) -> tuple[Any, Any, Any, Any]:
    seq, past = _length(input_ids, 1), op.Cast(past_lengths, to=INT64)
    start = op.Max(op.Min(past, op.Sub(_length(cache, 2), seq)), _scalar(0))
    tokens = op.Range(_scalar(0), seq, _scalar(1))
    slots = op.Add(op.Unsqueeze(start, _ints(1)), tokens)
    offset = op.Sub(slots, op.Unsqueeze(past, _ints(1)))
    new = op.Unsqueeze(op.Cast(context_lengths, to=INT64), _ints(1))
    valid = op.And(op.GreaterOrEqual(offset, _scalar(0)), op.Less(offset, new))
    source = op.Max(op.Min(offset, op.Sub(seq, _scalar(1))), _scalar(0))
    window = _ints(1, 3)
    return start, op.Unsqueeze(slots, window), op.Unsqueeze(source, window), op.Unsqueeze(valid, window)


def _attention_mask(input_ids: Any, past_lengths: Any, cache: Any, window: int) -> Any:
    query = op.Unsqueeze(_positions(input_ids, past_lengths), _ints(1, 3))
    key = op.Range(_scalar(0), _length(cache, 2), _scalar(1))
    visible = op.LessOrEqual(key, query)
    if window > 0:
        visible = op.And(visible, op.Greater(key, op.Sub(query, _scalar(window))))
    return visible


def _rotary_tables(
    input_ids: Any, past_lengths: Any, inv_freq: Any, scaling: float, dtype: torch.dtype | int
) -> tuple[Any, Any]:
    positions = op.Cast(_positions(input_ids, past_lengths), to=onnx.TensorProto.FLOAT)
    return _tables(op.Mul(op.Unsqueeze(positions, _ints(2)), inv_freq), scaling, dtype)


def _packed_rotary_tables(positions: Any, inv_freq: Any, scaling: float, dtype: torch.dtype | int) -> tuple[Any, Any]:
    positions = op.Cast(positions, to=onnx.TensorProto.FLOAT)
    return _tables(op.Mul(op.Unsqueeze(positions, _ints(1)), inv_freq), scaling, dtype)


def _tables(angles: Any, scaling: float, dtype: torch.dtype | int) -> tuple[Any, Any]:
    tables = []
    for table in (op.Cos(angles), op.Sin(angles)):
        if scaling != 1.0:
            table = op.Mul(table, op.Constant(value_float=scaling))
        tables.append(op.Cast(table, to=ONNX_DTYPES[dtype] if isinstance(dtype, torch.dtype) else dtype))
    return tables[0], tables[1]


def _selected_tokens(x: Any, logits_indices: Any) -> Any:
    return op.Gather(x, logits_indices, axis=0)


def _last_token(x: Any, context_lengths: Any) -> Any:
    last = op.Max(op.Sub(op.Cast(context_lengths, to=INT64), _scalar(1)), _scalar(0))
    return op.GatherND(x, op.Unsqueeze(last, _ints(1)), batch_dims=1)
