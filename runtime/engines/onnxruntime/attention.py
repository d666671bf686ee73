"""cached_attention as one GroupQueryAttention node over a buffer that is updated in place.

GroupQueryAttention reads only the positions that hold tokens, so a step costs what the context costs and not what the
capacity does. Its limits (see ``StepPlan``) are met by how the engine splits a step.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from hybridge.artifact.bindings import BATCH
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS
from hybridge.runtime.engines.onnxruntime.graph_edit import (
    Inserter,
    add_input,
    fixed_shape,
    op_attributes,
    replace_node,
)
from hybridge.runtime.engines.onnxruntime.graph_form import LAST_POSITIONS, LONGEST_CONTEXT
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.padding import without_padding
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.specs.attention_step import ATTENTION_STEP
from hybridge.trt_plugins.specs.cached_attention import ATTENTIONS, CACHED_ATTENTION

_SWAP_HEADS_AND_TIME = [0, 2, 1, 3]
# The kernel takes head sizes that are multiples of this; others are padded with zeros, in the caches too.
HEAD_DIM_MULTIPLE = 8
# Input of the kernel with a score for each head.
SINKS_INPUT = 11


def use_group_query_attention(model: ir.Model, kernels: Kernels, padded: bool) -> None:
    """Rewrite every attention layer that the kernel runs; ``padded`` says that rows may be of unequal length."""
    for node in list(model.graph):
        if (node.domain, node.op_type) == (DOMAIN, CACHED_ATTENTION.name):
            window = sliding_window(node)
            has_kernel = kernels.attention_sinks or len(node.inputs) <= CACHED_ATTENTION.input_index("sinks")
            if has_kernel and (not window or window != kernels.window_margin):
                _replace(model, node, window, kernels, padded)


def sliding_window(node: ir.Node) -> int:
    """That of an attention over caches; EngineError without an attention_step before it."""
    visible = node.inputs[ATTENTIONS[node.op_type].input_index("visible")]
    step = None if visible is None else visible.producer()
    if step is None or (step.domain, step.op_type) != (DOMAIN, ATTENTION_STEP.name):
        raise EngineError(
            f"expected {ATTENTION_STEP.name} before {node.op_type} {node.name}, found another node: export "
            "the checkpoint again"
        )
    return int(op_attributes(step)["sliding_window"])


def _replace(model: ir.Model, node: ir.Node, window: int, kernels: Kernels, padded: bool) -> None:
    insert = Inserter(model.graph, node)
    query, key, value, past_key, past_value = (given(tensor) for tensor in node.inputs[:5])
    heads, kv_heads, head_dim = _size(query, 1), _size(past_key, 1), _size(past_key, 3)
    last = add_input(model.graph, LAST_POSITIONS, ir.DataType.INT32, [BATCH])
    longest = add_input(model.graph, LONGEST_CONTEXT, ir.DataType.INT32, [1])
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "scale": op_attributes(node)["scale"]}
    if window:
        attributes["local_window_size"] = window - kernels.window_margin
    padding = -head_dim % HEAD_DIM_MULTIPLE
    tensors = [
        _padded_heads(insert, packed_heads(insert, tensor), count, head_dim, padding)
        for tensor, count in ((query, heads), (key, kv_heads), (value, kv_heads))
    ]
    inputs: list[ir.Value | None] = [*tensors, past_key, past_value, last, longest]
    if sinks := node.inputs[CACHED_ATTENTION.input_index("sinks") :]:
        inputs += [None] * (SINKS_INPUT - len(inputs)) + [given(sinks[0])]
    y, *presents = insert.microsoft("GroupQueryAttention", *inputs, outputs=3, **attributes)
    if padded:
        # The kernel leaves unspecified values there, and NaN times zero would reach a state.
        y = without_padding(insert, y, insert.input(CONTEXT_LENGTHS))
    y = insert.reshape(y, 0, 0, heads, head_dim + padding)
    if padding:
        y = insert.op("Slice", y, insert.ints(0), insert.ints(head_dim), insert.ints(3))
        for cache in (past_key, past_value, *node.outputs[1:]):
            cache.shape = ir.Shape([*given(cache).shape.dims[:3], head_dim + padding])  # type: ignore[union-attr]
    replace_node(node, [heads_before_time(insert, node.outputs[0], y), *presents])


def given(value: ir.Value | None) -> ir.Value:
    assert value is not None and value.shape is not None
    return value


def _size(value: ir.Value, axis: int) -> int:
    size = (fixed_shape(value) or ())[axis]
    assert size is not None
    return size


def _padded_heads(insert: Inserter, packed: ir.Value, heads: int, head_dim: int, padding: int) -> ir.Value:
    """[batch, seq, heads * head_dim] with ``padding`` zeros after each head, which change no product."""
    if not padding:
        return packed
    split = insert.reshape(packed, 0, 0, heads, head_dim)
    padded = insert.op("Pad", split, insert.ints(0, 0, 0, 0, 0, 0, 0, padding))
    return insert.reshape(padded, 0, 0, heads * (head_dim + padding))


def heads_before_time(insert: Inserter, output: ir.Value, y: ir.Value) -> ir.Value:
    """``y`` [batch, seq, heads, head_dim] as [batch, heads, seq, head_dim]; users of ``output`` that swap get ``y``."""
    for user in list(output.consumers()):
        if _is_head_swap(user) and not user.outputs[0].is_graph_output():
            y.shape = user.outputs[0].shape
            replace_node(user, [y])
    return insert.op("Transpose", y, perm=_SWAP_HEADS_AND_TIME)


def packed_heads(insert: Inserter, value: ir.Value) -> ir.Value:
    """[batch, heads, seq, head_dim] as [batch, seq, heads * head_dim], without Transposes where they cancel."""
    producer = value.producer()
    if producer is not None and producer.op_type == "RotaryEmbedding" and not producer.domain:
        shape = fixed_shape(value)
        if shape is not None and shape[1] is not None and producer.inputs[0] is not None:
            attributes: dict[str, Any] = {name: attribute.as_int() for name, attribute in producer.attributes.items()}
            attributes["num_heads"] = shape[1]
            flat = packed_heads(insert, producer.inputs[0])
            return insert.op("RotaryEmbedding", flat, *producer.inputs[1:], **attributes)
    packed = insert.reshape(_time_before_heads(insert, value), 0, 0, -1)
    if value.shape is not None and (sizes := fixed_shape(value)) is not None and sizes[1] and sizes[3]:
        # A known shape lets the Reshapes before it be left out.
        packed.type = ir.TensorType(ir.DataType.FLOAT)
        packed.shape = ir.Shape([value.shape[0], value.shape[2], sizes[1] * sizes[3]])
    return packed


def _time_before_heads(insert: Inserter, value: ir.Value) -> ir.Value:
    """[batch, heads, seq, head_dim] as [batch, seq, heads, head_dim]."""
    producer = value.producer()
    if producer is not None and _is_head_swap(producer):
        source = producer.inputs[0]
        assert source is not None
        return source
    if producer is not None and _is_last_axis_norm(producer) and producer.inputs[0] is not None:
        attributes = {name: attribute.value for name, attribute in producer.attributes.items()}
        source = _time_before_heads(insert, producer.inputs[0])
        return insert.op("RMSNormalization", source, producer.inputs[1], **attributes)
    return insert.op("Transpose", value, perm=_SWAP_HEADS_AND_TIME)


def _is_head_swap(node: ir.Node) -> bool:
    if node.op_type != "Transpose" or node.domain or "perm" not in node.attributes:
        return False
    return list(node.attributes["perm"].as_ints()) == _SWAP_HEADS_AND_TIME


def _is_last_axis_norm(node: ir.Node) -> bool:
    axis = node.attributes.get("axis")
    return node.op_type == "RMSNormalization" and not node.domain and (axis is None or axis.as_int() in (-1, 3))
