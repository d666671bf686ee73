"""One token of Mamba2's state update: a LinearAttention node, or standard operators where there is none."""

from __future__ import annotations

import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter
from runtime.engines.onnxruntime.ssm_inputs import SsmInputs


def linear_attention_step(insert: Inserter, i: SsmInputs) -> tuple[ir.Value, ir.Value]:
    """y [b, 1, heads * head_dim] and the new state: the "gated" rule with query C, key B and value step * x."""
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
    return y, new_state


def standard_step(insert: Inserter, i: SsmInputs) -> tuple[ir.Value, ir.Value]:
    """The same: state * decay + outer(B, step * x), read by C."""
    scaled = insert.op("Mul", insert.reshape(i.x, 0, i.heads, 1, i.head_dim), insert.reshape(i.step, 0, i.heads, 1, 1))
    written = insert.op("MatMul", _per_head(insert, i, i.B, i.state_size, 1), scaled)
    decay = insert.reshape(insert.op("Exp", i.log_decay), 0, i.heads, 1, 1)
    new_state = insert.op("Add", insert.op("Mul", i.state, decay), written)
    y = insert.op("MatMul", _per_head(insert, i, i.C, 1, i.state_size), new_state)
    return insert.reshape(y, 0, 1, i.heads * i.head_dim), new_state


def _per_head(insert: Inserter, i: SsmInputs, value: ir.Value, rows: int, columns: int) -> ir.Value:
    """[b, 1, groups, state_size] as [b, heads or 1, rows, columns]."""
    if i.groups == 1:
        return insert.reshape(value, 0, 1, rows, columns)
    grouped = insert.reshape(value, 0, i.groups, 1, i.state_size)
    repeated = insert.op("Expand", grouped, insert.ints(1, i.groups, i.heads_per_group, i.state_size))
    return insert.reshape(repeated, 0, i.heads, rows, columns)
