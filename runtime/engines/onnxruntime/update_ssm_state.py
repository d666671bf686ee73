"""Body of ``update_ssm_state``: LinearAttention, or standard operators for one token.

Mamba2's recurrence is the "gated" rule of LinearAttention with query C, key B, value d * x and log decay A * d,
where d is the time step after softplus and clamp; D * x is added outside. Its state is [state_size, head_dim] per
head, so the engine keeps such states in that order (``TRANSPOSED_STATE``) and turns rows when they are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from runtime.engines.onnxruntime.kernels import Kernels

TRANSPOSED_STATE = "engine.transposed_state"
"""Key in the ``meta`` of a state's graph input: its last two axes are swapped against the declaration."""


@dataclass(frozen=True)
class _Inputs:
    """The operator's inputs and sizes; ``step`` [batch, seq, heads] is the time step that x is scaled with."""

    x: ir.Value
    B: ir.Value
    C: ir.Value
    state: ir.Value
    step: ir.Value
    log_decay: ir.Value
    heads: int
    head_dim: int
    groups: int
    state_size: int


def update_ssm_state_body(node: ir.Node, insert: Inserter, kernels: Kernels) -> list[ir.Value] | None:
    """y [batch, seq, heads, head_dim] and the new state, for rows without padding."""
    x, A, B, C, D, dt, dt_bias, state = node.inputs[:8]
    x_shape, b_shape = fixed_shape(x), fixed_shape(B)
    if x_shape is None or b_shape is None or len(x_shape) != 4 or None in (*x_shape[2:], *b_shape[2:]):
        return None
    fused, one_token = kernels.recurrent_ops and _is_engine_state(node), x_shape[1] == 1
    if not (fused or one_token):
        return None
    step = _time_step(node, insert, dt, dt_bias)
    log_decay = insert.op("Mul", step, A)
    assert x is not None and B is not None and C is not None and state is not None
    sizes = (x_shape[2], x_shape[3], b_shape[2], b_shape[3])
    inputs = _Inputs(x, B, C, state, step, log_decay, *sizes)  # type: ignore[arg-type]
    if fused:
        _transpose_state(node)
        y, new_state = _linear_attention(insert, inputs)
    else:
        y, new_state = _standard_step(insert, inputs)
    skip = insert.op("Mul", x, insert.op("Unsqueeze", D, insert.ints(1)))
    return [insert.op("Add", y, skip), new_state]


def _time_step(node: ir.Node, insert: Inserter, dt: ir.Value | None, dt_bias: ir.Value | None) -> ir.Value:
    """clamp(softplus(dt + dt_bias)), without a clamp that cannot change anything."""
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


def _linear_attention(insert: Inserter, i: _Inputs) -> tuple[ir.Value, ir.Value]:
    scaled = insert.op("Mul", i.x, insert.op("Unsqueeze", i.step, insert.ints(3)))
    y, new_state = insert.microsoft(
        "LinearAttention",
        insert.reshape(i.C, 0, 0, i.groups * i.state_size),
        insert.reshape(i.B, 0, 0, i.groups * i.state_size),
        insert.reshape(scaled, 0, 0, i.heads * i.head_dim),
        i.state,
        i.log_decay,
        outputs=2,
        q_num_heads=i.groups,
        kv_num_heads=i.heads,
        update_rule="gated",
        scale=1.0,
    )
    return insert.reshape(y, 0, 0, i.heads, i.head_dim), new_state


def _standard_step(insert: Inserter, i: _Inputs) -> tuple[ir.Value, ir.Value]:
    """One token: state * decay + outer(d * x, B), then times C."""
    scaled = insert.op("Mul", insert.reshape(i.x, 0, i.heads, i.head_dim, 1), insert.reshape(i.step, 0, i.heads, 1, 1))
    written = insert.op("MatMul", scaled, _per_head(insert, i, i.B, 1, i.state_size))
    decay = insert.reshape(insert.op("Exp", i.log_decay), 0, i.heads, 1, 1)
    new_state = insert.op("Add", insert.op("Mul", i.state, decay), written)
    y = insert.op("MatMul", new_state, _per_head(insert, i, i.C, i.state_size, 1))
    return insert.reshape(y, 0, 1, i.heads, i.head_dim), new_state


def _per_head(insert: Inserter, i: _Inputs, value: ir.Value, rows: int, columns: int) -> ir.Value:
    """[batch, 1, groups, state_size] as [batch, heads or 1, rows, columns]."""
    if i.groups == 1:
        return insert.reshape(value, 0, 1, rows, columns)
    grouped = insert.reshape(value, 0, i.groups, 1, i.state_size)
    repeated = insert.op("Expand", grouped, insert.ints(1, i.groups, i.heads // i.groups, i.state_size))
    return insert.reshape(repeated, 0, i.heads, rows, columns)


def _is_engine_state(node: ir.Node) -> bool:
    """True when the state is a graph input and output that nothing else reads, so its layout is free to choose."""
    state, new_state = node.inputs[7], node.outputs[1]
    return (
        state is not None
        and state.is_graph_input()
        and len(state.uses()) == 1
        and new_state.is_graph_output()
        and not new_state.uses()
    )


def _transpose_state(node: ir.Node) -> None:
    for value in (node.inputs[7], node.outputs[1]):
        assert value is not None and value.shape is not None
        first, second, third, fourth = value.shape.dims
        value.shape = ir.Shape([first, second, fourth, third])
        value.meta[TRANSPOSED_STATE] = True
