"""Body of ``gated_delta_rule``: one LinearAttention node for one token or many.

Its state has the layout of the declaration. Padding neither forgets nor writes: its decay is 1 and its beta 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from runtime.engines.onnxruntime.kernels import Kernels
from runtime.engines.onnxruntime.padding import without_padding

# Of the sum of squares of a query or key.
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class _Sizes:
    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    decay_size: int


def gated_delta_rule_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """o [batch, seq, value_heads, value_size] and the new state."""
    q, k, v, g, beta, state, lengths = node.inputs[:7]
    sizes = _sizes(q, v, g)
    if not kernels.recurrent_ops or sizes is None:
        return None
    assert q is not None and k is not None and v is not None and g is not None and beta is not None
    attributes = op_attributes(node)
    scale = float(attributes["scale"]) or sizes.key_size**-0.5
    key_width = sizes.key_heads * sizes.key_size
    if attributes["use_qk_l2norm"]:
        q, k, scale = _normed(insert, q, sizes.key_size, scale), _normed(insert, k, sizes.key_size, 1.0), 1.0
    decay = insert.reshape(g, 0, 0, sizes.value_heads * sizes.decay_size)
    if padded:
        assert lengths is not None
        decay, beta = without_padding(insert, decay, lengths), without_padding(insert, beta, lengths)
    o, new_state = insert.microsoft(
        "LinearAttention",
        insert.reshape(q, 0, 0, key_width),
        insert.reshape(k, 0, 0, key_width),
        insert.reshape(v, 0, 0, sizes.value_heads * sizes.value_size),
        state,
        decay,
        beta,
        outputs=2,
        q_num_heads=sizes.key_heads,
        kv_num_heads=sizes.value_heads,
        update_rule="gated_delta",
        scale=scale,
    )
    assert v.shape is not None
    o.type, o.shape = v.type, ir.Shape([*v.shape.dims[:2], sizes.value_heads * sizes.value_size])
    return [insert.reshape(o, 0, 0, sizes.value_heads, sizes.value_size), new_state]


def _sizes(q: ir.Value | None, v: ir.Value | None, g: ir.Value | None) -> _Sizes | None:
    """The sizes of a call with a time axis, None where the graph does not tell them."""
    shapes = [fixed_shape(value) or () for value in (q, v, g)]
    sizes = [size for shape in shapes for size in shape[2:] if size is not None]
    if [len(shape) for shape in shapes] != [4, 4, 4] or len(sizes) != 6:
        return None
    key_heads, key_size, value_heads, value_size, _, decay_size = sizes
    return _Sizes(key_heads, key_size, value_heads, value_size, decay_size)


def _normed(insert: Inserter, value: ir.Value, size: int, factor: float) -> ir.Value:
    """``value`` [b, t, heads, size] * factor / sqrt(sum of squares + NORM_EPSILON), as one RMS norm."""
    weight = insert.constant(np.full(size, factor * size**-0.5, np.float32))
    normed = insert.op("RMSNormalization", value, weight, axis=-1, epsilon=NORM_EPSILON / size)
    normed.type, normed.shape = value.type, value.shape
    return normed
