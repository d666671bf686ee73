"""Cache update and attention as one GroupQueryAttention node over a buffer that is updated in place.

The exporter writes TensorScatter (the new keys and values into the cache) and Attention with a boolean mask over
the whole cache. GroupQueryAttention reads only the positions that hold tokens, so a step costs what the context
costs and not what the capacity does. Its limits (see ``StepPlan``) are met by how the engine splits a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from hybridge.artifact.bindings import BATCH
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.layer_config import KVLayerConfig
from hybridge.artifact.names import CONTEXT_LENGTHS, past_key, past_value
from hybridge.runtime.engines.onnxruntime.attention_mask import is_causal_mask
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.graph_form import LAST_POSITIONS, LONGEST_CONTEXT
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.padding import without_padding

_SWAP_HEADS_AND_TIME = [0, 2, 1, 3]
# The kernel takes head sizes that are multiples of this; others are padded with zeros, in the caches too.
_HEAD_DIM_MULTIPLE = 8


def use_group_query_attention(model: ir.Model, config: RuntimeConfig, kernels: Kernels, padded: bool) -> int:
    """Rewrite every attention layer whose form is recognised; returns how many were.

    ``padded`` says that rows may be of unequal length.
    """
    verified: set[tuple[ir.Value, int | None]] = set()
    count = 0
    for k, layer in enumerate(config.kv_layers):
        found = _find_layer(model, k, layer)
        if found is None or layer.sliding_window == kernels.window_margin != 0:
            continue
        key = (found.mask, layer.sliding_window)
        if key not in verified:
            if not is_causal_mask(model, found.mask, layer.sliding_window, kernels):
                continue
            verified.add(key)
        _replace(model, found, layer, kernels, padded)
        count += 1
    return count


@dataclass(frozen=True)
class _AttentionLayer:
    """One Attention node with its cache updates; q, k, v are [batch, heads, seq, head_dim]."""

    node: ir.Node
    scatter_key: ir.Node
    scatter_value: ir.Node
    q: ir.Value
    k: ir.Value
    v: ir.Value
    mask: ir.Value
    num_heads: int


def _find_layer(model: ir.Model, k: int, layer: KVLayerConfig) -> _AttentionLayer | None:
    inputs = {value.name: value for value in model.graph.inputs}
    scatters = [_scatter_of(inputs.get(name)) for name in (past_key(k), past_value(k))]
    if scatters[0] is None or scatters[1] is None:
        return None
    users = [node for node in scatters[0].outputs[0].consumers() if node.op_type == "Attention" and not node.domain]
    if len(users) != 1 or len([v for v in users[0].outputs if v.uses()]) != 1:
        return None
    node = users[0]
    present = [value for value in node.inputs if value is not None]
    q_shape = fixed_shape(node.inputs[0])
    if (
        len(present) != 4
        or node.inputs[1] is not scatters[0].outputs[0]
        or node.inputs[2] is not scatters[1].outputs[0]
        or q_shape is None
        or len(q_shape) != 4
        or q_shape[1] is None
        or node.attributes.get("is_causal", ir.AttrInt64("", 0)).as_int()
    ):
        return None
    new_key, new_value = (_new_tokens(scatter) for scatter in scatters if scatter is not None)
    return _AttentionLayer(node, scatters[0], scatters[1], present[0], new_key, new_value, present[3], q_shape[1])


def _scatter_of(past: ir.Value | None) -> ir.Node | None:
    if past is None:
        return None
    scatters = [n for n, index in past.uses() if n.op_type == "TensorScatter" and not n.domain and index == 0]
    return scatters[0] if len(scatters) == 1 and scatters[0].outputs[0].is_graph_output() else None


def _new_tokens(scatter: ir.Node) -> ir.Value:
    """The tokens before padding was masked out: Where(valid, gather(new), gather(past)) -> new."""
    update = scatter.inputs[1]
    assert update is not None
    where = update.producer()
    if where is None or where.op_type != "Where":
        return update
    chosen = where.inputs[1]
    assert chosen is not None
    gather = chosen.producer()
    if gather is None or gather.op_type != "GatherElements" or gather.inputs[0] is None:
        return update
    return gather.inputs[0]


def _replace(model: ir.Model, layer: _AttentionLayer, config: KVLayerConfig, kernels: Kernels, padded: bool) -> None:
    insert = Inserter(model.graph, layer.node)
    last = add_input(model.graph, LAST_POSITIONS, ir.DataType.INT32, [BATCH])
    longest = add_input(model.graph, LONGEST_CONTEXT, ir.DataType.INT32, [1])
    scale = layer.node.attributes.get("scale")
    attributes: dict[str, int | float] = {
        "num_heads": layer.num_heads,
        "kv_num_heads": config.num_kv_heads,
        "scale": config.head_dim**-0.5 if scale is None else scale.as_float(),
    }
    if "softcap" in layer.node.attributes:
        attributes["softcap"] = layer.node.attributes["softcap"].as_float()
    if config.sliding_window is not None:
        attributes["local_window_size"] = config.sliding_window - kernels.window_margin
    padding = -config.head_dim % _HEAD_DIM_MULTIPLE
    heads = (layer.num_heads, config.num_kv_heads, config.num_kv_heads)
    tensors = [
        _padded_heads(insert, _packed_heads(insert, tensor), count, config.head_dim, padding)
        for tensor, count in zip((layer.q, layer.k, layer.v), heads, strict=True)
    ]
    past = (layer.scatter_key.inputs[0], layer.scatter_value.inputs[0])
    y, key, value = insert.microsoft("GroupQueryAttention", *tensors, *past, last, longest, outputs=3, **attributes)
    if padded:
        # The kernel leaves there what it likes, and not a number times zero would reach a state.
        y = without_padding(insert, y, insert.input(CONTEXT_LENGTHS))
    y = insert.reshape(y, 0, 0, layer.num_heads, config.head_dim + padding)
    if padding:
        y = insert.op("Slice", y, insert.ints(0), insert.ints(config.head_dim), insert.ints(3))
        for cache in (*past, layer.scatter_key.outputs[0], layer.scatter_value.outputs[0]):
            _widen_cache(cache, config.head_dim + padding)
    _replace_output(insert, layer, y)
    replace_node(layer.scatter_key, [key])
    replace_node(layer.scatter_value, [value])


def _padded_heads(insert: Inserter, packed: ir.Value, heads: int, head_dim: int, padding: int) -> ir.Value:
    """[batch, seq, heads * head_dim] with ``padding`` zeros after each head, which change no product."""
    if not padding:
        return packed
    split = insert.reshape(packed, 0, 0, heads, head_dim)
    padded = insert.op("Pad", split, insert.ints(0, 0, 0, 0, 0, 0, 0, padding))
    return insert.reshape(padded, 0, 0, heads * (head_dim + padding))


def _widen_cache(cache: ir.Value | None, head_dim: int) -> None:
    assert cache is not None and cache.shape is not None
    cache.shape = ir.Shape([*cache.shape.dims[:3], head_dim])


def _replace_output(insert: Inserter, layer: _AttentionLayer, y: ir.Value) -> None:
    """``y`` [batch, seq, heads, head_dim] takes the place of the node's [batch, heads, seq, head_dim]."""
    output = layer.node.outputs[0]
    for user in list(output.consumers()):
        if _is_head_swap(user) and not user.outputs[0].is_graph_output():
            y.shape = user.outputs[0].shape
            replace_node(user, [y])
    replacement = y
    if output.uses() or output.is_graph_output():
        replacement = insert.op("Transpose", y, perm=_SWAP_HEADS_AND_TIME)
        ir.convenience.replace_all_uses_with(output, replacement, replace_graph_outputs=True)
    graph = layer.node.graph
    assert graph is not None
    graph.remove(layer.node, safe=True)


def _packed_heads(insert: Inserter, value: ir.Value) -> ir.Value:
    """[batch, heads, seq, head_dim] as [batch, seq, heads * head_dim], without Transposes where they cancel."""
    producer = value.producer()
    if producer is not None and producer.op_type == "RotaryEmbedding" and not producer.domain:
        shape = fixed_shape(value)
        if shape is not None and shape[1] is not None and producer.inputs[0] is not None:
            attributes: dict[str, Any] = {name: attribute.as_int() for name, attribute in producer.attributes.items()}
            attributes["num_heads"] = shape[1]
            flat = _packed_heads(insert, producer.inputs[0])
            return insert.op("RotaryEmbedding", flat, *producer.inputs[1:], **attributes)
    return insert.reshape(_time_before_heads(insert, value), 0, 0, -1)


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
