"""Recurrent operators over draft tokens that leave the state unchanged, and the state after the accepted ones.

With one decay for each head, recurrences are S = exp(g[t]) S + outer(left[t], right[t]) once their own terms are known
(arXiv 2405.21060, 2412.06464). So a check of t tokens reads the state once, as a matrix that multiplies all of them,
and stores g, left and right, from which the state after the accepted tokens follows. With other decays a check computes
token after token. It stores the inputs, as a convolution does.

Letters in shapes: b rows of a step, t tokens of each, g groups (key heads), r heads of a group, n rows of a state as
this engine holds it (key size, state size of Mamba2), m columns (value size, head_dim of Mamba2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.causal_conv1d import convolution, has_own_convolution, own_convolution
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.engine_inputs import MOST_REPLAYED
from hybridge.runtime.engines.onnxruntime.gated_delta_rule import (
    DeltaRuleInputs,
    delta_rule,
    delta_rule_inputs,
    has_own_rule,
    rule_operator,
)
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.linear_attention import linear_attention
from hybridge.runtime.engines.onnxruntime.replay_rows import TokenRows
from hybridge.runtime.engines.onnxruntime.replay_scan import advance_scan, decay_numbers, selective_scan_replay
from hybridge.runtime.engines.onnxruntime.replay_values import Accepted, AdvanceBody, Deferred, ReplayBody, Stored
from hybridge.runtime.engines.onnxruntime.update_ssm_state import (
    ssm_inputs,
    ssm_operator,
    time_step,
    with_skip,
)
from hybridge.trt_plugins.activations import silu
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, STATE_INDICES
from hybridge.trt_plugins.specs.state_forms import base_name

_HEAD_DECAY = "head"
_SCAN = "selective_scan"
# Values that ``advance_recurrent`` reads.
_RECURRENT_STORED = 3


def causal_conv1d_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int | None) -> Deferred | None:
    """The replay stores the inputs."""
    x, weight, bias, state = node.inputs[:4]
    shape = fixed_shape(weight)
    if x is None or shape is None or shape[0] is None or shape[2] is None:
        return None
    channels, kernel = shape[0], shape[2]
    own = own_convolution(node, insert, kernels, padded=False)
    if own is not None:
        return Deferred(own[0], (Stored(x, (channels,)),), (channels, kernel))
    columns = insert.op("Transpose", x, perm=[0, 2, 1])
    before = insert.op("Slice", state, insert.ints(1), insert.ints(kernel), insert.ints(2))
    if kernels.recurrent_ops:
        y, _ = insert.microsoft("CausalConvWithState", columns, weight, bias, before, outputs=2)
    else:
        y = insert.op("Conv", insert.op("Concat", before, columns, axis=2), weight, bias, group=channels)
    if op_attributes(node)["activation"] == "silu":
        y = silu(insert, y)
    y = insert.op("Transpose", y, perm=[0, 2, 1])
    return Deferred(y, (Stored(x, (channels,)),), (channels, kernel))


def advance_conv1d(
    insert: Inserter, kernels: Kernels, stored: list[ir.Value], state: ir.Value, accepted: Accepted
) -> ir.Value:
    """The last columns of the state followed by the accepted inputs."""
    shape = fixed_shape(state)
    assert shape is not None and shape[1] is not None and shape[2] is not None
    if kernels.own_operators and has_own_convolution(shape[2]):
        weight = insert.constant(np.zeros((shape[1], 1, shape[2]), np.float32))
        lengths = insert.op("Cast", accepted.counts, to=int(ir.DataType.INT32))
        return convolution(insert, stored[0], weight, state, None, lengths)[1]
    joined = insert.op("Concat", insert.op("Transpose", state, perm=[0, 2, 1]), stored[0], axis=1)
    columns = insert.op("Gather", insert.reshape(joined, -1, shape[1]), accepted.window(insert, shape[2]), axis=0)
    after: ir.Value = insert.op("Transpose", columns, perm=[0, 2, 1])
    return after


def update_ssm_state_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int | None) -> Deferred | None:
    """y = C (decayed S) + (C B' with decays) d x; g, d x and B are stored.

    With the library's operator d, x and B, of which an advance computes the others again.
    """
    inputs, x = ssm_inputs(node, insert, padded=False), node.inputs[0]
    if inputs is None or x is None or (count or 0) > MOST_REPLAYED:
        return None
    B = Stored(inputs.B, (inputs.groups * inputs.state_size,))
    stored = (Stored(inputs.log_decay, (inputs.heads,)), B, Stored(inputs.scaled, (inputs.heads * inputs.head_dim,)))
    shape = (inputs.heads, inputs.state_size, inputs.head_dim)
    if kernels.own_operators and cpu_library().path is not None:
        y, new_state = ssm_operator(node, insert)
        # Nothing reads the new states: the operator does not write them.
        operator = new_state.producer()
        assert operator is not None
        operator.resize_outputs(1)
        decay = decay_numbers(node)
        if decay is None:
            return Deferred(y, stored, shape)
        steps = Stored(time_step(node, insert, node.inputs[5], node.inputs[6]), (inputs.heads,))
        given = Stored(insert.reshape(x, 0, 0, inputs.heads * inputs.head_dim), stored[2].shape)
        return Deferred(y, (steps, given, B), shape, (decay.astype(np.float32).reshape(inputs.heads),))
    rows = TokenRows(insert, count, inputs.groups, inputs.heads_per_group)
    between, from_start = rows.decays(inputs.log_decay)
    values = rows.by_head(inputs.scaled, inputs.head_dim)
    keys, queries = rows.by_group(inputs.B, inputs.state_size), rows.by_group(inputs.C, inputs.state_size)
    scores = insert.op("Mul", insert.microsoft("FusedMatMul", queries, keys, transB=1), between)
    state = rows.states(inputs.state, inputs.state_size, inputs.head_dim)
    carried = insert.op("Mul", insert.op("MatMul", queries, state), from_start)
    y = rows.tokens(insert.op("Add", insert.op("MatMul", scores, values), carried), inputs.head_dim)
    return Deferred(with_skip(node, insert, inputs, y), stored, shape)


def gated_delta_rule_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int | None) -> Deferred | None:
    """o = q (decayed S) + (q k' with decays) u; g, k and u, the differences that are written, are stored.

    With the library's operator, and with decays of each key channel, k, v, g and beta, of which an advance computes the
    differences again.
    """
    inputs = delta_rule_inputs(node, insert, padded=False)
    if inputs is None or (count or 0) > MOST_REPLAYED:
        return None
    shape = (inputs.value_heads, inputs.key_size, inputs.value_size)
    k = Stored(inputs.k, (inputs.key_heads * inputs.key_size,))
    is_own, is_by_channel = _is_own(kernels, inputs.key_size), op_attributes(node)["decay"] != _HEAD_DECAY
    if is_by_channel and not is_own and not kernels.recurrent_ops:
        return None
    if is_own or is_by_channel:
        o, _ = rule_operator(insert, inputs) if is_own else delta_rule(insert, inputs)
        o = insert.reshape(o, 0, 0, inputs.value_heads, inputs.value_size)
        v = Stored(inputs.v, (inputs.value_heads * inputs.value_size,))
        decay = Stored(inputs.decay, (inputs.value_heads * (inputs.key_size if is_by_channel else 1),))
        return Deferred(o, (k, v, decay, Stored(inputs.beta, (inputs.value_heads,))), shape)
    rows = TokenRows(insert, count, inputs.key_heads, inputs.value_heads // inputs.key_heads)
    between, from_start = rows.decays(inputs.decay)
    keys, queries = rows.by_group(inputs.k, inputs.key_size), rows.by_group(inputs.q, inputs.key_size)
    if inputs.scale != 1.0:
        queries = insert.op("Mul", queries, insert.constant(np.array(inputs.scale, np.float32)))
    state = rows.states(inputs.state, inputs.key_size, inputs.value_size)
    read = insert.op("MatMul", insert.op("Concat", keys, queries, axis=3), state)  # [b, g, r, 2 t, m]
    by_key, by_query = insert.op("Split", read, outputs=2, axis=3, num_outputs=2)
    written = _written(insert, rows, inputs, keys, between, insert.op("Mul", by_key, from_start))
    scores = insert.op("Mul", insert.microsoft("FusedMatMul", queries, keys, transB=1), between)
    carried = insert.op("Mul", by_query, from_start)
    o = rows.tokens(insert.op("Add", insert.op("MatMul", scores, written), carried), inputs.value_size)
    stored = (
        Stored(inputs.decay, (inputs.value_heads,)),
        k,
        Stored(rows.tokens(written, inputs.value_size), (inputs.value_heads * inputs.value_size,)),
    )
    o = insert.reshape(o, 0, 0, inputs.value_heads, inputs.value_size)
    return Deferred(o, stored, shape)


def advance_delta_rule(
    insert: Inserter, kernels: Kernels, stored: list[ir.Value], state: ir.Value, accepted: Accepted
) -> ir.Value:
    """As ``advance_recurrent``, or by an operator from k, v, g and beta."""
    if len(stored) == _RECURRENT_STORED:
        return advance_recurrent(insert, kernels, stored, state, accepted)
    k, v, decay, beta = stored
    shape, k_shape = fixed_shape(state), fixed_shape(k)
    assert shape is not None and k_shape is not None
    heads, key_size, value_size = (size or 0 for size in shape[1:])
    key_heads = (k_shape[2] or 0) // key_size
    rule = DeltaRuleInputs(k, k, v, decay, beta, state, 1.0, key_heads, key_size, heads, value_size)
    if not _is_own(kernels, key_size):
        return delta_rule(insert, rule)[1]
    return rule_operator(insert, rule, insert.op("Cast", accepted.counts, to=int(ir.DataType.INT32)))[1]


def _is_own(kernels: Kernels, key_size: int) -> bool:
    return kernels.own_operators and has_own_rule(key_size)


def advance_recurrent(
    insert: Inserter, kernels: Kernels, stored: list[ir.Value], state: ir.Value, accepted: Accepted
) -> ir.Value:
    """state [b, g * r, n, m] decayed, plus outer products of left and right with the decays that come after each."""
    shape, left_shape = fixed_shape(state), fixed_shape(stored[1])
    assert shape is not None and left_shape is not None
    all_heads, rows, columns = (size or 0 for size in shape[1:])
    groups = (left_shape[2] or 0) // rows
    log_decay, left, right = stored
    if kernels.recurrent_ops:
        # The tokens' reads of the states are not needed here.
        _, after = linear_attention(
            insert, left, left, right, state, log_decay, key_heads=groups, value_heads=all_heads
        )
        return after
    heads, axis = all_heads // groups, insert.scalar(1)
    later = insert.op("Exp", insert.op("CumSum", log_decay, axis, exclusive=1, reverse=1))
    total = insert.op("Exp", insert.op("ReduceSum", log_decay, insert.ints(1), keepdims=0))
    weights = insert.op("Transpose", insert.reshape(later, 0, 0, groups, heads, 1), perm=[0, 2, 3, 1, 4])
    values = insert.op("Transpose", insert.reshape(right, 0, 0, groups, heads, columns), perm=[0, 2, 3, 1, 4])
    keys = insert.op("Transpose", insert.reshape(left, 0, 0, groups, 1, rows), perm=[0, 2, 3, 4, 1])
    added = insert.op("MatMul", keys, insert.op("Mul", values, weights))
    decayed = insert.op("Mul", state, insert.reshape(total, -1, all_heads, 1, 1))
    return insert.op("Add", insert.reshape(added, 0, all_heads, rows, columns), decayed)


def advance_ssm_state(
    insert: Inserter, kernels: Kernels, stored: list[ir.Value], state: ir.Value, accepted: Accepted
) -> ir.Value:
    """As ``advance_recurrent``, or by an operator from d, x, B and A."""
    if len(stored) == _RECURRENT_STORED:
        return advance_recurrent(insert, kernels, stored, state, accepted)
    steps, x, B, A = stored
    shape, b_shape = fixed_shape(state), fixed_shape(B)
    assert shape is not None and b_shape is not None
    heads, state_size = shape[1] or 0, shape[2] or 0
    zeros = insert.constant(np.zeros(heads, np.float32))
    lengths = insert.op("Cast", accepted.counts, to=int(ir.DataType.INT32))
    # The tokens' reads of the states are not needed here: B is given as C too.
    _, after = insert.op(
        "UpdateSsmState",
        x,
        A,
        B,
        B,
        zeros,
        steps,
        zeros,
        state,
        lengths,
        domain=CPU_DOMAIN,
        outputs=2,
        heads=heads,
        groups=(b_shape[2] or 0) // state_size,
        dt_softplus=0,
        time_step_min=-math.inf,
        time_step_max=math.inf,
        instructions=0,
    )
    return after


REPLAY_BODIES: Mapping[str, ReplayBody] = MappingProxyType(
    {
        "causal_conv1d": causal_conv1d_replay,
        "gated_delta_rule": gated_delta_rule_replay,
        _SCAN: selective_scan_replay,
        "update_ssm_state": update_ssm_state_replay,
    }
)
ADVANCE_BODIES: Mapping[str, AdvanceBody] = MappingProxyType(
    {
        "causal_conv1d": advance_conv1d,
        "gated_delta_rule": advance_delta_rule,
        _SCAN: advance_scan,
        "update_ssm_state": advance_ssm_state,
    }
)


def replayable_operators(model: ir.Model) -> frozenset[str]:
    """The recurrent operators of a paged artifact's graph that have a replay body."""
    nodes = recurrent_nodes(model)
    others = {node.op_type for node in nodes if node.op_type == _SCAN and decay_numbers(node) is None}
    found = {node.op_type for node in nodes if base_name(node.op_type) in REPLAY_BODIES}
    return frozenset(found - others)


def recurrent_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of a packed graph that have pools of states."""
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    return [node for node in nodes if STATE_INDICES in spec_of(node.op_type, PACKED_VERSION).inputs]


def _written(
    insert: Inserter, rows: TokenRows, i: DeltaRuleInputs, keys: ir.Value, between: ir.Value, read: ir.Value
) -> ir.Value:
    """u [b, g, r, t, m] = (1 + A)^-1 beta (v - read), A = beta (k k' with decays) below the diagonal.

    A to the power of t is 0, so that the inverse is (1 - A)(1 + A^2)(1 + A^4) for up to 8 tokens; at so few tokens and
    products of at most 1 nothing grows that would cancel.
    """
    beta = rows.by_head(i.beta, 1)
    products = insert.op("Trilu", insert.microsoft("FusedMatMul", keys, keys, transB=1), insert.scalar(-1), upper=0)
    power = insert.op("Mul", insert.op("Mul", products, between), beta)
    u = insert.op("Mul", insert.op("Sub", rows.by_head(i.v, i.value_size), read), beta)
    u = insert.op("Sub", u, insert.op("MatMul", power, u))
    reached = 2
    while reached < rows.most:
        power = insert.op("MatMul", power, power)
        u = insert.op("Add", u, insert.op("MatMul", power, u))
        reached *= 2
    result: ir.Value = u
    return result
