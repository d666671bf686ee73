"""Recurrent operators over candidate tokens that leave the state as it is, and the state after those that were right.

Both recurrences are S = exp(g[t]) S + outer(left[t], right[t]) once their own terms are known (trt_plugins/reference/
replay.py). So a check of t tokens reads the state once, as a matrix that all of them are multiplied with, and keeps g,
left and right; one product of these advances the state by the tokens that were accepted. A convolution keeps its
inputs.

Letters of shapes: t tokens, g groups (key heads), r heads of a group, n rows of a state as this engine holds it (key
size, state size of Mamba2), m columns (value size, head_dim of Mamba2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from runtime.engines.onnxruntime.gated_delta_rule import DeltaRuleInputs, delta_rule_inputs
from runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from runtime.engines.onnxruntime.kernels import Kernels
from runtime.engines.onnxruntime.update_ssm_state import ssm_inputs, with_skip
from trt_plugins.catalog import DOMAIN, spec_of
from trt_plugins.specs.packed import PACKED_VERSION, STATE_INDICES

MOST_REPLAYED = 8
"""Tokens of a row that is checked at most: the delta rule's inverse has so many powers."""
_HEAD_DECAY = "head"


@dataclass(frozen=True)
class Kept:
    """One value that the tokens leave behind, of ``shape`` [1, t, *shape]."""

    value: ir.Value
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """y, what is kept of the tokens, and the shape in which both graphs are given the state of a slot."""

    y: ir.Value
    kept: tuple[Kept, ...]
    state_shape: tuple[int, ...]


# (dense node of one row, inserter, kernels, tokens) -> what takes its place, or None where there is nothing.
ReplayBody = Callable[[ir.Node, Inserter, Kernels, int], "Replayed | None"]
# (inserter, values kept [1, accepted, ...], state) -> the state after the accepted tokens.
AdvanceBody = Callable[[Inserter, "list[ir.Value]", ir.Value], ir.Value]


def causal_conv1d_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int) -> Replayed | None:
    """The inputs are kept."""
    x, weight, bias, state = node.inputs[:4]
    shape = fixed_shape(weight)
    if x is None or shape is None or shape[0] is None or shape[2] is None:
        return None
    channels, kernel = shape[0], shape[2]
    columns = insert.op("Transpose", x, perm=[0, 2, 1])
    before = insert.op("Slice", state, insert.ints(1), insert.ints(kernel), insert.ints(2))
    if kernels.recurrent_ops:
        y, _ = insert.microsoft("CausalConvWithState", columns, weight, bias, before, outputs=2)
    else:
        y = insert.op("Conv", insert.op("Concat", before, columns, axis=2), weight, bias, group=channels)
    if op_attributes(node)["activation"] == "silu":
        y = insert.microsoft("QuickGelu", y, alpha=1.0)
    y = insert.op("Transpose", y, perm=[0, 2, 1])
    return Replayed(y, (Kept(insert.reshape(x, 1, count, channels), (channels,)),), (1, channels, kernel))


def advance_conv1d(insert: Inserter, kept: list[ir.Value], state: ir.Value) -> ir.Value:
    """The last columns of the state with the inputs behind it."""
    shape = fixed_shape(state)
    assert shape is not None and shape[2] is not None
    joined = insert.op("Concat", state, insert.op("Transpose", kept[0], perm=[0, 2, 1]), axis=2)
    last: ir.Value = insert.op(
        "Slice", joined, insert.ints(-shape[2]), insert.ints(np.iinfo(np.int64).max), insert.ints(2)
    )
    return last


def update_ssm_state_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int) -> Replayed | None:
    """y = C (decayed S) + (C B' with decays) d x; g, d x and B are kept."""
    inputs = ssm_inputs(node, insert, padded=False)
    if inputs is None or count > MOST_REPLAYED:
        return None
    rows = _Rows(insert, count, inputs.groups, inputs.heads_per_group)
    between, from_start = rows.decays(inputs.log_decay)
    values = rows.by_head(inputs.scaled, inputs.head_dim)
    keys, queries = rows.by_group(inputs.B, inputs.state_size), rows.by_group(inputs.C, inputs.state_size)
    scores = insert.op("Mul", insert.microsoft("FusedMatMul", queries, keys, transB=1), between)
    carried = insert.op("Mul", insert.op("MatMul", queries, inputs.state), from_start)
    y = rows.tokens(insert.op("Add", insert.op("MatMul", scores, values), carried), inputs.head_dim)
    kept = (
        Kept(inputs.log_decay, (inputs.heads,)),
        Kept(inputs.B, (inputs.groups * inputs.state_size,)),
        Kept(inputs.scaled, (inputs.heads * inputs.head_dim,)),
    )
    shape = (inputs.groups, inputs.heads_per_group, inputs.state_size, inputs.head_dim)
    return Replayed(with_skip(node, insert, inputs, y), kept, shape)


def gated_delta_rule_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int) -> Replayed | None:
    """o = q (decayed S) + (q k' with decays) u; g, k and u, the differences that are written, are kept."""
    inputs = delta_rule_inputs(node, insert, padded=False)
    if inputs is None or count > MOST_REPLAYED or op_attributes(node)["decay"] != _HEAD_DECAY:
        return None
    rows = _Rows(insert, count, inputs.key_heads, inputs.value_heads // inputs.key_heads)
    between, from_start = rows.decays(inputs.decay)
    keys, queries = rows.by_group(inputs.k, inputs.key_size), rows.by_group(inputs.q, inputs.key_size)
    if inputs.scale != 1.0:
        queries = insert.op("Mul", queries, insert.constant(np.array(inputs.scale, np.float32)))
    read = insert.op("MatMul", insert.op("Concat", keys, queries, axis=2), inputs.state)  # [g, r, 2 t, m]
    by_key, by_query = insert.op("Split", read, outputs=2, axis=2, num_outputs=2)
    written = _written(insert, rows, inputs, keys, between, insert.op("Mul", by_key, from_start))
    scores = insert.op("Mul", insert.microsoft("FusedMatMul", queries, keys, transB=1), between)
    carried = insert.op("Mul", by_query, from_start)
    o = rows.tokens(insert.op("Add", insert.op("MatMul", scores, written), carried), inputs.value_size)
    kept = (
        Kept(inputs.decay, (inputs.value_heads,)),
        Kept(inputs.k, (inputs.key_heads * inputs.key_size,)),
        Kept(rows.tokens(written, inputs.value_size), (inputs.value_heads * inputs.value_size,)),
    )
    o = insert.reshape(o, 0, 0, inputs.value_heads, inputs.value_size)
    return Replayed(o, kept, (inputs.key_heads, rows.heads, inputs.key_size, inputs.value_size))


def advance_recurrent(insert: Inserter, kept: list[ir.Value], state: ir.Value) -> ir.Value:
    """state [g, r, n, m] decayed, plus the outer products of left and right with the decays that come after each."""
    shape = fixed_shape(state)
    assert shape is not None
    groups, heads, rows, columns = (size or 0 for size in shape)
    log_decay, left, right = kept
    axis = insert.scalar(1)
    later = insert.op("Exp", insert.op("CumSum", log_decay, axis, exclusive=1, reverse=1))
    total = insert.op("Exp", insert.op("ReduceSum", log_decay, insert.ints(1), keepdims=0))
    weights = insert.op("Transpose", insert.reshape(later, -1, groups, heads, 1), perm=[1, 2, 0, 3])
    values = insert.op("Transpose", insert.reshape(right, -1, groups, heads, columns), perm=[1, 2, 0, 3])
    keys = insert.op("Transpose", insert.reshape(left, -1, groups, 1, rows), perm=[1, 2, 3, 0])
    added = insert.op("MatMul", keys, insert.op("Mul", values, weights))
    decayed = insert.op("Mul", state, insert.reshape(total, groups, heads, 1, 1))
    after: ir.Value = insert.op("Add", added, decayed)
    return after


REPLAY_BODIES: Mapping[str, ReplayBody] = MappingProxyType(
    {
        "causal_conv1d": causal_conv1d_replay,
        "gated_delta_rule": gated_delta_rule_replay,
        "update_ssm_state": update_ssm_state_replay,
    }
)
ADVANCE_BODIES: Mapping[str, AdvanceBody] = MappingProxyType(
    {
        "causal_conv1d": advance_conv1d,
        "gated_delta_rule": advance_recurrent,
        "update_ssm_state": advance_recurrent,
    }
)


def replays_all(model: ir.Model) -> bool:
    """Whether there is a body for every recurrent operator of an artifact of the paged layout."""
    return all(
        node.op_type in REPLAY_BODIES and op_attributes(node).get("decay", _HEAD_DECAY) == _HEAD_DECAY
        for node in recurrent_nodes(model)
    )


def recurrent_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of a packed or speculative graph that have pools of states."""
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    return [node for node in nodes if STATE_INDICES in spec_of(node.op_type, PACKED_VERSION).inputs]


@dataclass(frozen=True)
class _Rows:
    """The tokens of one row as matrices of every head."""

    insert: Inserter
    count: int
    groups: int
    heads: int

    def decays(self, log_decay: ir.Value) -> tuple[ir.Value, ir.Value]:
        """exp(sum of log_decay [1, t, g * r] over the tokens j + 1 to i) [g, r, i, j], 0 where j > i.

        And from before the first token to i: [g, r, i, 1].
        """
        insert, t = self.insert, self.count
        index = np.arange(t)
        # Row i * (t + 1) + 1 + j: the tokens between j and i; row i * (t + 1): those up to i.
        first = np.concatenate(([-1], index))
        terms = (index > first[None, :, None]) & (index <= index[:, None, None])
        after = np.where(first[None, :] > index[:, None], -np.inf, 0.0)
        sums = insert.op(
            "Gemm",
            insert.constant(terms.reshape(-1, t).astype(np.float32)),
            insert.reshape(log_decay, t, self.groups * self.heads),
            insert.constant(after.reshape(-1, 1).astype(np.float32)),
        )
        decays = insert.op("Transpose", insert.op("Exp", sums), perm=[1, 0])
        decays = insert.reshape(decays, self.groups, self.heads, t, t + 1)
        from_start, between = insert.op("Split", decays, insert.ints(1, t), outputs=2, axis=3)
        return between, from_start

    def by_head(self, value: ir.Value, width: int) -> ir.Value:
        """[1, t, g * r * width] as [g, r, t, width]."""
        split = self.insert.reshape(value, self.count, self.groups, self.heads, width)
        matrices: ir.Value = self.insert.op("Transpose", split, perm=[1, 2, 0, 3])
        return matrices

    def by_group(self, value: ir.Value, width: int) -> ir.Value:
        """[1, t, g * width] as [g, 1, t, width]."""
        split = self.insert.reshape(value, self.count, self.groups, 1, width)
        matrices: ir.Value = self.insert.op("Transpose", split, perm=[1, 2, 0, 3])
        return matrices

    def tokens(self, matrices: ir.Value, width: int) -> ir.Value:
        """[g, r, t, width] as [1, t, g * r * width]."""
        back = self.insert.op("Transpose", matrices, perm=[2, 0, 1, 3])
        return self.insert.reshape(back, 1, self.count, self.groups * self.heads * width)


def _written(
    insert: Inserter, rows: _Rows, i: DeltaRuleInputs, keys: ir.Value, between: ir.Value, read: ir.Value
) -> ir.Value:
    """u [g, r, t, m] = (1 + A)^-1 beta (v - read), A = beta (k k' with decays) below the diagonal.

    A to the power of t is 0, so that the inverse is (1 - A)(1 + A^2)(1 + A^4) for up to 8 tokens; at so few tokens and
    products of at most 1 nothing grows that would cancel.
    """
    beta = rows.by_head(i.beta, 1)
    below = insert.constant(np.tril(np.ones((rows.count, rows.count), np.float32), -1))
    products = insert.op("Mul", insert.microsoft("FusedMatMul", keys, keys, transB=1), below)
    power = insert.op("Mul", insert.op("Mul", products, between), beta)
    u = insert.op("Mul", insert.op("Sub", rows.by_head(i.v, i.value_size), read), beta)
    u = insert.op("Sub", u, insert.op("MatMul", power, u))
    reached = 2
    while reached < rows.count:
        power = insert.op("MatMul", power, power)
        u = insert.op("Add", u, insert.op("MatMul", power, u))
        reached *= 2
    result: ir.Value = u
    return result
