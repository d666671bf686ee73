"""ONNX nodes of the operators in router_ops (opset 24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript.onnx_opset import opset24

from hybridge.exporter.graph.router_ops import SUM_EPSILON
from hybridge.exporter.graph.standard_ops import NAMESPACE

# The recorder passes symbolic tensors, which the generated signatures do not know.
op: Any = opset24

LEAST = float(np.finfo(np.float32).min)


def router_translations() -> Mapping[Any, Callable[..., Any]]:
    """The custom translation table of torch.onnx.export for every operator of router_ops."""
    namespace = getattr(torch.ops, NAMESPACE)
    return {
        namespace.softmax_top_k.default: _softmax_top_k,
        namespace.top_k_softmax.default: _top_k_softmax,
        namespace.sigmoid_top_k.default: _sigmoid_top_k,
    }


def _softmax_top_k(logits: Any, top_k: int, normalized: bool) -> tuple[Any, Any]:
    weights, ids = _top_k(op.Softmax(logits, axis=-1), top_k)
    return op.Div(weights, _sum(weights)) if normalized else weights, _int32(ids)


def _top_k_softmax(logits: Any, top_k: int) -> tuple[Any, Any]:
    largest, ids = _top_k(logits, top_k)
    return op.Softmax(largest, axis=-1), _int32(ids)


def _sigmoid_top_k(
    logits: Any,
    correction_bias: Any,
    top_k: int,
    groups: int,
    kept_groups: int,
    normalized: bool,
    scaling: float,
) -> tuple[Any, Any]:
    scores = op.Sigmoid(logits)
    biased = op.Add(scores, correction_bias)
    if kept_groups < groups:
        biased = _best_groups(biased, [0] * (len(logits.shape) - 1), int(logits.shape[-1]), groups, kept_groups)
    ids = _top_k(biased, top_k)[1]
    weights = op.GatherElements(scores, ids, axis=-1)
    if normalized:
        weights = op.Div(weights, op.Add(_sum(weights), op.Constant(value_float=SUM_EPSILON)))
    if scaling != 1.0:
        weights = op.Mul(weights, op.Constant(value_float=scaling))
    return weights, _int32(ids)


def _best_groups(biased: Any, tokens: list[int], experts: int, groups: int, kept_groups: int) -> Any:
    """``biased`` [..., experts] with the least number outside of the kept groups; ``tokens`` is a 0 an axis before."""
    grouped = op.Reshape(biased, op.Constant(value_ints=[*tokens, groups, experts // groups]))
    value = op.ReduceSum(_top_k(grouped, 2)[0], op.Constant(value_ints=[-1]), keepdims=0)
    kept = op.Unsqueeze(_top_k(value, kept_groups)[1], op.Constant(value_ints=[-2]))  # [..., 1, kept_groups]
    same = op.Equal(kept, op.Constant(value=_column(groups)))  # [..., groups, kept_groups]
    hits = op.ReduceSum(op.Cast(same, to=onnx.TensorProto.FLOAT), op.Constant(value_ints=[-1]), keepdims=1)
    masked = op.Where(op.Greater(hits, op.Constant(value_float=0.0)), grouped, op.Constant(value_float=LEAST))
    return op.Reshape(masked, op.Constant(value_ints=[*tokens, experts]))


def _column(count: int) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.arange(count, dtype=np.int64)[:, None])


def _top_k(x: Any, count: int) -> tuple[Any, Any]:
    values, ids = op.TopK(x, op.Constant(value_ints=[count]), axis=-1)
    return values, ids


def _sum(weights: Any) -> Any:
    return op.ReduceSum(weights, op.Constant(value_ints=[-1]), keepdims=1)


def _int32(ids: Any) -> Any:
    return op.Cast(ids, to=onnx.TensorProto.INT32)
