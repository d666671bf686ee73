"""cached_attention, also of latents, as one node of the library of CPU kernels, which rotates queries and keys too.

Against GroupQueryAttention it leaves out the keys that a token of a prompt does not see, and needs no nodes before it.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.bindings import BATCH
from hybridge.runtime.engines.onnxruntime.attention import (
    given,
    heads_before_time,
    packed_heads,
    sliding_window,
)
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import (
    Inserter,
    add_input,
    fixed_shape,
    op_attributes,
    replace_node,
)
from hybridge.runtime.engines.onnxruntime.graph_form import LAST_POSITIONS
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.cached_attention import ATTENTIONS, SINKS

OPERATOR = "CachedAttention"
# The kernel takes head sizes that are multiples of this.
_HEAD_SIZE_UNIT = 16


def use_cached_attention(model: ir.Model, kernels: Kernels) -> None:
    """Replace every attention layer that the kernel runs, in a graph whose rows have equally many new tokens.

    Layers with sinks are left, and all where the library cannot be compiled.
    """
    if not kernels.own_operators:
        return
    for node in list(model.graph):
        spec = ATTENTIONS.get(node.op_type) if node.domain == DOMAIN else None
        if spec is None:
            continue
        sizes = fixed_shape(node.inputs[spec.input_index("past_key")])
        has_sinks = SINKS in spec.inputs[: len(node.inputs)]
        if has_sinks or sizes is None or not sizes[3] or sizes[3] % _HEAD_SIZE_UNIT or cpu_library().path is None:
            continue
        _replace(model, node, spec, sizes[3])


def _replace(model: ir.Model, node: ir.Node, spec: OpSpec, head_size: int) -> None:
    insert, window = Inserter(model.graph, node), sliding_window(node)
    inputs = {tensor.name: value for tensor, value in zip(spec.inputs, node.inputs, strict=False)}
    query, key, past_keys = (given(inputs[name]) for name in ("query", "key", "past_key"))
    value, past_values = inputs.get("value"), inputs.get("past_value")
    shape = fixed_shape(query)
    assert shape is not None and shape[1]
    last = add_input(model.graph, LAST_POSITIONS, ir.DataType.INT32, [BATCH])
    first, second = _rotation(query, head_size), _rotation(key, head_size)
    angles: tuple[ir.Value, ...] = ()
    if first is not None and second is not None and first[1:] == second[1:]:
        query, key, angles = first[0], second[0], first[1:]
    tensors = [None if tensor is None else packed_heads(insert, tensor) for tensor in (query, key, value)]
    y, *presents = insert.op(
        OPERATOR,
        *tensors,
        past_keys,
        past_values,
        last,
        *angles,
        domain=CPU_DOMAIN,
        outputs=len(node.outputs),
        scale=op_attributes(node)["scale"],
        window=window,
        instructions=0,
    )
    y = insert.reshape(y, 0, 0, shape[1], head_size)
    replace_node(node, [heads_before_time(insert, node.outputs[0], y), *presents])


def _rotation(value: ir.Value, head_size: int) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The value before a RotaryEmbedding that the kernel can apply, with cos and sin [rows, time, angles]."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "RotaryEmbedding") or len(node.inputs) != 3:
        return None
    x, cos, sin = (given(tensor) for tensor in node.inputs)
    angles = fixed_shape(cos)
    if angles is None or len(angles) != 3 or not angles[2] or node.attributes.get_int("interleaved", False):
        return None
    size = node.attributes.get_int("rotary_embedding_dim", 0) or head_size
    return (x, cos, sin) if size == 2 * angles[2] else None
