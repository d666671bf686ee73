"""How the operators of standard_ops become ONNX nodes (opset 24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
from onnxscript import values
from onnxscript.onnx_opset import opset24

from hybridge.exporter.graph import standard_ops

# The recorder passes symbolic tensors, which the generated signatures do not know.
op: Any = opset24

# The mark operator's node; removed again when the graph's values are named.
MARK_DOMAIN, MARK_OP, MARK_ATTRIBUTE = "hybridge", "Mark", "name"


def standard_translations() -> Mapping[Any, Callable[..., Any]]:
    """The custom translation table of torch.onnx.export for every operator of standard_ops."""
    _register_mark()
    namespace = getattr(torch.ops, standard_ops.NAMESPACE)
    return {
        namespace.rms_norm.default: _rms_norm,
        namespace.grouped_rms_norm.default: _grouped_rms_norm,
        namespace.rotary_embedding.default: _rotary_embedding,
        namespace.tensor_scatter.default: _tensor_scatter,
        namespace.attention.default: _attention,
        namespace.mark.default: _mark,
    }


def _rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=eps)


def _grouped_rms_norm(x: Any, groups: int, eps: float) -> Any:
    size = int(x.shape[-1]) // groups
    # The statistics are float32, and so is x.
    ones = op.Constant(value_floats=[1.0] * size)
    if groups == 1:
        return op.RMSNormalization(x, ones, axis=-1, epsilon=eps)
    leading = [0] * (len(x.shape) - 1)
    grouped = op.Reshape(x, op.Constant(value_ints=[*leading, groups, size]))
    normed = op.RMSNormalization(grouped, ones, axis=-1, epsilon=eps)
    return op.Reshape(normed, op.Constant(value_ints=[*leading, groups * size]))


def _rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    rotary_dim = 2 * int(cos.shape[-1])
    attributes = {"interleaved": 0}
    if rotary_dim != int(x.shape[-1]):
        # The axis of x says how many heads there are; ONNX Runtime 1.23 wants to read it all the same.
        attributes |= {"rotary_embedding_dim": rotary_dim, "num_heads": int(x.shape[1])}
    if len(x.shape) == 4:
        return op.RotaryEmbedding(x, cos, sin, **attributes)
    # Every packed token is a batch entry of one token.
    time, before = op.Constant(value_ints=[2]), op.Constant(value_ints=[1])
    x, cos, sin = op.Unsqueeze(x, time), op.Unsqueeze(cos, before), op.Unsqueeze(sin, before)
    return op.Squeeze(op.RotaryEmbedding(x, cos, sin, **attributes), time)


def _tensor_scatter(past: Any, update: Any, start: Any) -> Any:
    return op.TensorScatter(past, update, start, axis=2, mode="linear")


def _attention(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    return op.Attention(q, k, v, mask, scale=scale)[0]


def _mark(x: Any, name: str) -> Any:
    return getattr(values.Opset(MARK_DOMAIN, 1), MARK_OP)(x, name=name)


def _register_mark() -> None:
    """The tracer looks up the schema of every node that it records."""
    if onnx.defs.has(MARK_OP, MARK_DOMAIN):
        return
    schema = onnx.defs.OpSchema(
        MARK_OP,
        MARK_DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "Any float.")],
        attributes=[onnx.defs.OpSchema.Attribute(MARK_ATTRIBUTE, onnx.defs.OpSchema.AttrType.STRING, "Value name.")],
    )
    onnx.defs.register_schema(schema)
