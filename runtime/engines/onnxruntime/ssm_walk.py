"""Mamba2's state update token by token: a LinearAttention node, or standard operators for one token.

The node updates the state of a head for all tokens while it is in the processor's caches, in 0.2 to 0.5 of the time of
matrix products over chunks (docs/explanation/onnxruntime_engine.md).
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.linear_attention import linear_attention
from hybridge.runtime.engines.onnxruntime.ssm_inputs import SsmInputs


def walk_tokens(insert: Inserter, i: SsmInputs, kernels: Kernels) -> tuple[ir.Value, ir.Value]:
    """y [b, t, heads * head_dim], without the skip connection, and the new state; t is 1 without ``recurrent_ops``."""
    return _linear_attention(insert, i) if kernels.recurrent_ops else _one_token(insert, i)


def _linear_attention(insert: Inserter, i: SsmInputs) -> tuple[ir.Value, ir.Value]:
    """A LinearAttention node with query C, key B and value step * x."""
    return linear_attention(insert, i.C, i.B, i.scaled, i.state, i.log_decay, key_heads=i.groups, value_heads=i.heads)


def _one_token(insert: Inserter, i: SsmInputs) -> tuple[ir.Value, ir.Value]:
    """Standard operators: state * decay + outer(B, step * x), read by C."""
    scaled = insert.reshape(i.scaled, 0, i.heads, 1, i.head_dim)
    written = insert.op("MatMul", _per_head(insert, i, i.B, i.state_size, 1), scaled)
    decay = insert.reshape(insert.op("Exp", i.log_decay), 0, i.heads, 1, 1)
    new_state = insert.op("Add", insert.op("Mul", i.state, decay), written)
    y = insert.op("MatMul", _per_head(insert, i, i.C, 1, i.state_size), new_state)
    return insert.reshape(y, 0, 1, i.heads * i.head_dim), new_state


def _per_head(insert: Inserter, i: SsmInputs, value: ir.Value, rows: int, columns: int) -> ir.Value:
    """[b, 1, groups * state_size] as [b, heads or 1, rows, columns]."""
    if i.groups == 1:
        return insert.reshape(value, 0, 1, rows, columns)
    grouped = insert.reshape(value, 0, i.groups, 1, i.state_size)
    repeated = insert.op("Expand", grouped, insert.ints(1, i.groups, i.heads_per_group, i.state_size))
    return insert.reshape(repeated, 0, i.heads, rows, columns)
