"""Body of ``gated_delta_rule`` for one token or many: GatedDeltaRule of the library of CPU kernels, or LinearAttention.

The state has the layout of the declaration. In LinearAttention, padding neither forgets nor writes: its decay is 1 and
its beta 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.linear_attention import linear_attention
from hybridge.runtime.engines.onnxruntime.padding import without_padding
from hybridge.runtime.engines.onnxruntime.ssm_inputs import split_tokens

# Added to the sum of squares of a query or key.
NORM_EPSILON = 1e-6
# Numbers of a key that GatedDeltaRule supports.
_MOST_KEY_SIZE = 1024


@dataclass(frozen=True)
class DeltaRuleInputs:
    """q, k [b, t, key_heads * key_size], normed and scaled; v [b, t, value_heads * value_size]; decay [b, t,
    value_heads * decay_size], its logarithm; beta [b, t, value_heads]; state [b, value_heads, key_size, value_size].
    """

    q: ir.Value
    k: ir.Value
    v: ir.Value
    decay: ir.Value
    beta: ir.Value
    state: ir.Value
    scale: float
    key_heads: int
    key_size: int
    value_heads: int
    value_size: int

    def tokens(self, insert: Inserter, count: int) -> Iterator[DeltaRuleInputs]:
        """The inputs of each of the ``count`` tokens alone, all with this state."""
        given = (self.q, self.k, self.v, self.decay, self.beta)
        for q, k, v, decay, beta in zip(*(split_tokens(insert, value, count) for value in given), strict=True):
            yield replace(self, q=q, k=k, v=v, decay=decay, beta=beta)

    def after(self, state: ir.Value) -> DeltaRuleInputs:
        """These inputs with another initial state."""
        return replace(self, state=state)


def gated_delta_rule_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """o [batch, seq, value_heads, value_size] and the new state."""
    sizes = _token_sizes(node)
    if kernels.own_operators and sizes and has_own_rule(sizes.key_size):
        return _own_operator(node, insert, sizes, padded)
    inputs = delta_rule_inputs(node, insert, padded) if kernels.recurrent_ops else None
    if inputs is None:
        return None
    o, new_state = delta_rule(insert, inputs)
    v = node.inputs[2]
    assert v is not None and v.shape is not None
    o.type, o.shape = v.type, ir.Shape([*v.shape.dims[:2], inputs.value_heads * inputs.value_size])
    return [insert.reshape(o, 0, 0, inputs.value_heads, inputs.value_size), new_state]


def delta_rule_inputs(node: ir.Node, insert: Inserter, padded: bool) -> DeltaRuleInputs | None:
    """The inputs of the node; None for a call without a time axis, or if the graph lacks the sizes."""
    q, k, v, g, beta, state, lengths = node.inputs[:7]
    sizes = _token_sizes(node)
    if sizes is None:
        return None
    key_heads, key_size, value_heads, value_size, decay_size = sizes
    assert q is not None and k is not None and v is not None and g is not None
    assert beta is not None and state is not None
    attributes = op_attributes(node)
    scale = float(attributes["scale"]) or key_size**-0.5
    if attributes["use_qk_l2norm"]:
        q, k, scale = _normed(insert, q, key_size, scale), _normed(insert, k, key_size, 1.0), 1.0
    decay = insert.reshape(g, 0, 0, value_heads * decay_size)
    if padded:
        assert lengths is not None
        decay, beta = without_padding(insert, decay, lengths), without_padding(insert, beta, lengths)
    return DeltaRuleInputs(
        insert.reshape(q, 0, 0, key_heads * key_size),
        insert.reshape(k, 0, 0, key_heads * key_size),
        insert.reshape(v, 0, 0, value_heads * value_size),
        decay,
        beta,
        state,
        scale,
        key_heads,
        key_size,
        value_heads,
        value_size,
    )


class _TokenSizes(NamedTuple):
    """The sizes of one token."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    decay_size: int


def _token_sizes(node: ir.Node) -> _TokenSizes | None:
    """None for a call without a time axis, or if the graph lacks the sizes."""
    q, v, g = (node.inputs[index] for index in (0, 2, 3))
    shapes = [fixed_shape(value) or () for value in (q, v, g)]
    sizes = [size for shape in shapes for size in shape[2:] if size is not None]
    if [len(shape) for shape in shapes] != [4, 4, 4] or len(sizes) != 6:
        return None
    key_heads, key_size, value_heads, value_size, _, decay_size = sizes
    return _TokenSizes(key_heads, key_size, value_heads, value_size, decay_size)


def _own_operator(node: ir.Node, insert: Inserter, sizes: _TokenSizes, padded: bool) -> list[ir.Value]:
    attributes = op_attributes(node)
    q, k, v, g, beta, state, lengths = node.inputs[:7]
    assert q is not None and k is not None and v is not None and v.shape is not None and g is not None
    columns = sizes.value_heads * sizes.value_size
    o, new_state = insert.op(
        "GatedDeltaRule",
        insert.reshape(q, 0, 0, sizes.key_heads * sizes.key_size),
        insert.reshape(k, 0, 0, sizes.key_heads * sizes.key_size),
        insert.reshape(v, 0, 0, columns),
        insert.reshape(g, 0, 0, sizes.value_heads * sizes.decay_size),
        beta,
        state,
        *([lengths] if padded else []),
        domain=CPU_DOMAIN,
        outputs=2,
        key_heads=sizes.key_heads,
        scale=float(attributes["scale"]) or sizes.key_size**-0.5,
        normed=int(attributes["use_qk_l2norm"]),
        instructions=0,
    )
    o.type, o.shape = v.type, ir.Shape([*v.shape.dims[:2], columns])
    return [insert.reshape(o, 0, 0, sizes.value_heads, sizes.value_size), new_state]


def has_own_rule(key_size: int) -> bool:
    """Whether the library computes keys of so many numbers."""
    return key_size <= _MOST_KEY_SIZE and cpu_library().path is not None


def rule_operator(insert: Inserter, i: DeltaRuleInputs, lengths: ir.Value | None = None) -> tuple[ir.Value, ir.Value]:
    """A GatedDeltaRule node: o and the new state, of the first ``lengths`` [b] tokens of each row or of all."""
    o, new_state = insert.op(
        "GatedDeltaRule",
        *(i.q, i.k, i.v, i.decay, i.beta, i.state),
        *([] if lengths is None else [lengths]),
        domain=CPU_DOMAIN,
        outputs=2,
        key_heads=i.key_heads,
        scale=i.scale,
        normed=0,
        instructions=0,
    )
    return o, new_state


def delta_rule(insert: Inserter, i: DeltaRuleInputs) -> tuple[ir.Value, ir.Value]:
    """o [b, t, value_heads * value_size] and the new state."""
    return linear_attention(
        insert,
        i.q,
        i.k,
        i.v,
        i.state,
        i.decay,
        i.beta,
        key_heads=i.key_heads,
        value_heads=i.value_heads,
        scale=i.scale,
    )


def _normed(insert: Inserter, value: ir.Value, size: int, factor: float) -> ir.Value:
    """``value`` [b, t, heads, size] * factor / sqrt(sum of squares + NORM_EPSILON), as one RMS norm."""
    weight = insert.constant(np.full(size, factor * size**-0.5, np.float32))
    normed = insert.op("RMSNormalization", value, weight, axis=-1, epsilon=NORM_EPSILON / size)
    normed.type, normed.shape = value.type, value.shape
    return normed
