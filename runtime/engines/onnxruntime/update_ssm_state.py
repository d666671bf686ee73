"""Body of ``update_ssm_state``: UpdateSsmState of the library of CPU kernels, LinearAttention, or standard operators.

There is one form of standard operators for single tokens, and one for chunks.

All store the state as [state_size, head_dim] per head, the order of ONNX Runtime's LinearAttention; the declaration has
[head_dim, state_size] (``TRANSPOSED_STATE``). The engine transposes a row when it is read.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.padding import without_padding
from hybridge.runtime.engines.onnxruntime.ssm_inputs import SsmInputs
from hybridge.runtime.engines.onnxruntime.ssm_prefill import chunked_scan
from hybridge.runtime.engines.onnxruntime.ssm_walk import walk_tokens

TRANSPOSED_STATE = "engine.transposed_state"
"""Key in the ``meta`` of a state's graph input: its last two axes are swapped, compared with the declaration."""

INNER_STATE = "engine.inner_state"
"""Key in the ``meta`` of a state that the graph computes, already in the order of the bodies."""

POOL = "engine.pool"
"""Key in the ``meta`` of a state that is a pool or gathered from one: the pool, and the output that replaces it."""


def update_ssm_state_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y [batch, seq, heads, head_dim] and the new state."""
    if kernels.own_operators and is_supported(node) and cpu_library().path is not None:
        return own_operator(node, insert, padded)
    inputs = ssm_inputs(node, insert, padded)
    if inputs is None:
        return None
    shape = fixed_shape(node.inputs[0])
    walks = kernels.recurrent_ops or (shape is not None and shape[1] == 1)
    y, new_state = walk_tokens(insert, inputs, kernels) if walks else chunked_scan(insert, inputs)
    return [with_skip(node, insert, inputs, y), new_state]


def ssm_inputs(node: ir.Node, insert: Inserter, padded: bool) -> SsmInputs | None:
    """The inputs of all forms of the update; None if the sizes or the state's layout are not supported."""
    x, A, B, C, _, dt, dt_bias, state, lengths = node.inputs[:9]
    if not is_supported(node):
        return None
    x_shape, b_shape = fixed_shape(x), fixed_shape(B)
    assert x_shape is not None and b_shape is not None
    heads, head_dim, groups, state_size = *x_shape[2:], *b_shape[2:]
    assert heads is not None and head_dim is not None and groups is not None and state_size is not None
    assert B is not None and C is not None and state is not None
    step = time_step(node, insert, dt, dt_bias)
    if padded:
        assert lengths is not None
        # A time step of zero leaves the state unchanged.
        step = without_padding(insert, step, lengths)
    scaled = insert.op("Mul", x, insert.op("Unsqueeze", step, insert.ints(3)))
    transpose_state(node)
    return SsmInputs(
        insert.reshape(scaled, 0, 0, heads * head_dim),
        insert.reshape(B, 0, 0, groups * state_size),
        insert.reshape(C, 0, 0, groups * state_size),
        insert.op("Mul", step, A),
        state,
        heads,
        head_dim,
        groups,
        state_size,
    )


def is_supported(node: ir.Node) -> bool:
    """Whether the sizes of a token are known and the state may be stored in another order."""
    x_shape, b_shape = fixed_shape(node.inputs[0]), fixed_shape(node.inputs[2])
    if x_shape is None or b_shape is None or len(x_shape) != 4 or None in (*x_shape[2:], *b_shape[2:]):
        return False
    return is_engine_state(node)


def own_operator(node: ir.Node, insert: Inserter, padded: bool, scales: ir.Value | None = None) -> list[ir.Value]:
    """UpdateSsmState, or with the ``scales`` of a state of 8 bits UpdateSsmState8Bit; their outputs."""
    transpose_state(node)
    return ssm_operator(node, insert, padded, scales)


def ssm_operator(
    node: ir.Node, insert: Inserter, padded: bool = False, scales: ir.Value | None = None
) -> list[ir.Value]:
    """As ``own_operator``, of a state that is transposed already."""
    attributes = op_attributes(node)
    settings = {name: attributes[name] for name in ("dt_softplus", "time_step_min", "time_step_max")}
    x, A, B, C, D, dt, dt_bias, state = node.inputs[:8]
    lengths = node.inputs[-1]
    x_shape, b_shape = fixed_shape(x), fixed_shape(B)
    assert x is not None and x.shape is not None and B is not None and C is not None
    assert x_shape is not None and b_shape is not None
    heads, head_dim, groups, state_size = (size or 0 for size in (*x_shape[2:], *b_shape[2:]))
    columns, projections = heads * head_dim, groups * state_size
    y, *new_state = insert.op(
        "UpdateSsmState" if scales is None else "UpdateSsmState8Bit",
        insert.reshape(x, 0, 0, columns),
        A,
        insert.reshape(B, 0, 0, projections),
        insert.reshape(C, 0, 0, projections),
        D,
        dt,
        dt_bias,
        state,
        *([] if scales is None else [scales]),
        *([lengths] if padded else []),
        domain=CPU_DOMAIN,
        outputs=2 if scales is None else 3,
        heads=heads,
        groups=groups,
        instructions=0,
        **settings,
    )
    y.type, y.shape = x.type, ir.Shape([*x.shape.dims[:2], columns])
    return [insert.reshape(y, 0, 0, heads, head_dim), *new_state]


def with_skip(node: ir.Node, insert: Inserter, i: SsmInputs, y: ir.Value) -> ir.Value:
    """``y`` [batch, seq, heads * head_dim] plus D times x, as [batch, seq, heads, head_dim]."""
    x, D = node.inputs[0], node.inputs[4]
    assert x is not None and x.shape is not None
    width = i.heads * i.head_dim
    per_channel = insert.op("Expand", insert.op("Unsqueeze", D, insert.ints(1)), insert.ints(i.heads, i.head_dim))
    skip = insert.op("Mul", insert.reshape(x, 0, 0, width), insert.reshape(per_channel, width))
    y = insert.op("Add", y, skip)
    y.type, y.shape = x.type, ir.Shape([*x.shape.dims[:2], width])
    return insert.reshape(y, 0, 0, i.heads, i.head_dim)


def time_step(node: ir.Node, insert: Inserter, dt: ir.Value | None, dt_bias: ir.Value | None) -> ir.Value:
    """clamp(softplus(dt + dt_bias)), without clamps that have no effect."""
    attributes = op_attributes(node)
    step = insert.op("Add", dt, dt_bias)
    lowest, highest = float(attributes["time_step_min"]), float(attributes["time_step_max"])
    if attributes["dt_softplus"]:
        step = insert.op("Softplus", step)
        lowest = lowest if lowest > 0.0 else -math.inf
    if lowest == -math.inf and highest == math.inf:
        return step
    limits = [None if math.isinf(v) else insert.constant(np.array(v, np.float32)) for v in (lowest, highest)]
    return insert.op("Clip", step, *limits)


def is_engine_state(node: ir.Node) -> bool:
    """True when the state is a graph input and output that nothing else reads, so any layout may be chosen."""
    state, new_state = node.inputs[7], node.outputs[1]
    if state is None:
        return False
    if INNER_STATE in state.meta:
        return True
    if POOL in state.meta:
        # The pool is read by this node or its gather, and by the packed node that is being replaced.
        pool, new_pool = state.meta[POOL]
        return pool.is_graph_input() and len(pool.uses()) == 2 and new_pool.is_graph_output() and not new_pool.uses()
    alone = len(state.uses()) == 1 and not new_state.uses()
    return alone and state.is_graph_input() and new_state.is_graph_output()


def transpose_state(node: ir.Node) -> None:
    """Swap the last two axes of the state, and of the pool that it comes from."""
    state = node.inputs[7]
    assert state is not None
    if INNER_STATE in state.meta:
        return
    for value in dict.fromkeys((state, node.outputs[1], *state.meta.get(POOL, ()))):
        assert value is not None and value.shape is not None
        first, second, third, fourth = value.shape.dims
        value.shape = ir.Shape([first, second, fourth, third])
        value.meta[TRANSPOSED_STATE] = True
