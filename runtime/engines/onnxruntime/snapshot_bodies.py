"""Recurrent operators over draft tokens: their outputs, and the state after each token.

Inputs are prepared for all tokens of the row at once; then one-token updates follow, each from the state that the one
before it wrote. So a step costs one pass over a state per token, and a session, which is made for this number of
tokens, can write each state where the engine wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.gated_delta_rule import delta_rule, delta_rule_inputs
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.selective_scan import scan_inputs, scan_one_token
from hybridge.runtime.engines.onnxruntime.selective_scan import with_skip as scan_with_skip
from hybridge.runtime.engines.onnxruntime.ssm_walk import walk_tokens
from hybridge.runtime.engines.onnxruntime.update_ssm_state import ssm_inputs, with_skip
from hybridge.trt_plugins.activations import silu

# (dense node of one row, inserter, kernels, tokens) -> y and the state after each token, or None if there is none.
SnapshotBody = Callable[[ir.Node, Inserter, Kernels, int], "tuple[ir.Value, list[ir.Value]] | None"]


def causal_conv1d_snapshots(
    node: ir.Node, insert: Inserter, kernels: Kernels, count: int
) -> tuple[ir.Value, list[ir.Value]] | None:
    """Every state is a window of the old state followed by the row's inputs."""
    x, weight, bias, state = node.inputs[:4]
    weight_shape = fixed_shape(weight)
    if weight_shape is None or weight_shape[0] is None or weight_shape[2] is None:
        return None
    channels, kernel = weight_shape[0], weight_shape[2]
    columns = insert.op("Transpose", x, perm=[0, 2, 1])
    joined = insert.op("Concat", state, columns, axis=2)
    states = [_columns(insert, joined, 1 + j, 1 + j + kernel) for j in range(count)]
    if kernels.recurrent_ops:
        before = _columns(insert, joined, 1, kernel)
        y, _ = insert.microsoft("CausalConvWithState", columns, weight, bias, before, outputs=2)
    else:
        y = insert.op("Conv", _columns(insert, joined, 1, kernel + count), weight, bias, group=channels)
    if op_attributes(node)["activation"] == "silu":
        y = silu(insert, y)
    return insert.op("Transpose", y, perm=[0, 2, 1]), states


def update_ssm_state_snapshots(
    node: ir.Node, insert: Inserter, kernels: Kernels, count: int
) -> tuple[ir.Value, list[ir.Value]] | None:
    """One-token updates, one after another."""
    inputs = ssm_inputs(node, insert, padded=False)
    if inputs is None:
        return None
    state, parts, states = inputs.state, [], []
    for token in inputs.tokens(insert, count):
        y, state = walk_tokens(insert, token.after(state), kernels)
        parts.append(y)
        states.append(state)
    return with_skip(node, insert, inputs, insert.op("Concat", *parts, axis=1)), states


def gated_delta_rule_snapshots(
    node: ir.Node, insert: Inserter, kernels: Kernels, count: int
) -> tuple[ir.Value, list[ir.Value]] | None:
    """One-token updates, one after another."""
    inputs = delta_rule_inputs(node, insert, padded=False) if kernels.recurrent_ops else None
    if inputs is None:
        return None
    state, parts, states = inputs.state, [], []
    for token in inputs.tokens(insert, count):
        o, state = delta_rule(insert, token.after(state))
        parts.append(o)
        states.append(state)
    o = insert.op("Concat", *parts, axis=1)
    return insert.reshape(o, 0, 0, inputs.value_heads, inputs.value_size), states


def selective_scan_snapshots(
    node: ir.Node, insert: Inserter, kernels: Kernels, count: int
) -> tuple[ir.Value, list[ir.Value]] | None:
    """One-token updates, one after another."""
    inputs = scan_inputs(node, insert, padded=False)
    if inputs is None:
        return None
    state, parts, states = inputs.state, [], []
    for token in inputs.tokens(insert, count):
        y, state = scan_one_token(insert, token.after(state))
        parts.append(y)
        states.append(state)
    return scan_with_skip(node, insert, insert.op("Concat", *parts, axis=1)), states


SNAPSHOT_BODIES: Mapping[str, SnapshotBody] = MappingProxyType(
    {
        "causal_conv1d": causal_conv1d_snapshots,
        "gated_delta_rule": gated_delta_rule_snapshots,
        "selective_scan": selective_scan_snapshots,
        "update_ssm_state": update_ssm_state_snapshots,
    }
)


def _columns(insert: Inserter, value: ir.Value, start: int, end: int) -> ir.Value:
    return insert.op("Slice", value, insert.ints(start), insert.ints(end), insert.ints(2))
