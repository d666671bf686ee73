"""States that a step leaves unchanged, and the graph that replays the accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.dtypes import DType
from hybridge.artifact.paged import ROWS
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.replay_bodies import ADVANCE_BODIES
from hybridge.runtime.engines.onnxruntime.replay_values import Accepted
from hybridge.runtime.engines.onnxruntime.state_ring import in_order_of_bodies, in_order_of_declaration
from hybridge.runtime.engines.rollback.modes import OperatorCost
from hybridge.trt_plugins.ring_nodes import RingNodes
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.state_rounding import exact_state, rounded_state

ACCEPTED = "accepted"
"""Input of the replaying graph: by how many of its first tokens each row advances, int64 [rows]."""
_OPSET = 21


@dataclass(frozen=True)
class DeferredScales:
    """The pool of the scales of a state of type ``dtype``; the numbers along ``axis``, in the graph, share one."""

    pool: str
    dtype: DType
    axis: int


@dataclass(frozen=True)
class DeferredRing:
    """The pools of a state's ring: those of its tensors by name with their shapes, and that of its length."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    lengths: str


@dataclass(frozen=True)
class DeferredPool:
    """A pool by name, with the shape of a slot in the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of one slot."""
        return self.dtype.itemsize * int(np.prod(self.shape))


@dataclass(frozen=True)
class DeferredState:
    """One pool whose states a graph leaves unchanged. op: its operator. shape: of a slot's state, in the graph.

    stored: name and shape, for each token, of every output that the tokens leave behind: what a replay reads, or with
    ``is_snapshot`` the state after the token, followed by its scales, or the length of its ring. scales: of states of 8
    bits. ring: of states with one; they advance by being written, with an empty ring.
    weights: of the model, which a replay needs, too.
    """

    op: str
    pool: str
    shape: tuple[int, ...]
    stored: tuple[tuple[str, tuple[int, ...]], ...]
    is_snapshot: bool = False
    scales: DeferredScales | None = None
    ring: DeferredRing | None = None
    weights: tuple[np.ndarray, ...] = field(default=(), compare=False)

    @property
    def pools(self) -> tuple[DeferredPool, ...]:
        """The pools that advance: that of the state, and that of its scales, or of its ring's lengths."""
        if self.ring is not None:
            lengths = DeferredPool(self.ring.lengths, (1,), DType.INT32)
            return DeferredPool(self.pool, self.shape, DType.FLOAT32), lengths
        if self.scales is None:
            return (DeferredPool(self.pool, self.shape, DType.FLOAT32),)
        shape = list(self.shape)
        del shape[self.scales.axis]
        scales = DeferredPool(self.scales.pool, tuple(shape), DType.FLOAT32)
        return DeferredPool(self.pool, self.shape, self.scales.dtype), scales

    @property
    def pools_read(self) -> tuple[DeferredPool, ...]:
        """All pools that the operator reads, in its order."""
        if self.ring is None:
            return self.pools
        state, lengths = self.pools
        return (state, *(DeferredPool(name, shape, DType.FLOAT32) for name, shape in self.ring.tensors), lengths)

    @property
    def cost(self) -> OperatorCost:
        """The cost of a rollback, in bytes."""
        return OperatorCost(sum(pool.nbytes for pool in self.pools), None if self.is_snapshot else self.token_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token stores."""
        if self.is_snapshot:
            return sum(pool.nbytes for pool in self.pools)
        return 4 * sum(int(np.prod(shape)) for _, shape in self.stored)


def advanced_output(pool: str) -> str:
    """Output of the replaying graph: the states of ``pool`` after the accepted tokens."""
    return f"{pool}.advanced"


def replay_model(states: Sequence[DeferredState], kernels: Kernels) -> ir.Model:
    """A model of ``states``, none a snapshot: those of rows [rows, ...] and what the tokens stored [rows, seq, ...].

    Its outputs are the states after the ``ACCEPTED`` tokens of each row, unchanged for 0; the stored values of later
    tokens must be zero. Each output may overwrite its state.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="replay")
    counts = add_input(graph, ACCEPTED, ir.DataType.INT64, [ROWS])
    end = ir.node("Identity", [counts])
    graph.append(end)
    insert, inputs = Inserter(graph, end), []
    for state in states:
        past = tuple(
            add_input(graph, pool.name, ir.DataType(pool.dtype.onnx), [ROWS, *pool.shape]) for pool in state.pools_read
        )
        stored = [add_input(graph, name, ir.DataType.FLOAT, [ROWS, SEQ, *shape]) for name, shape in state.stored]
        inputs.append((past, stored))
    accepted = Accepted(counts, insert.size(inputs[0][1][0], 1))
    for state, (past, stored) in zip(states, inputs, strict=True):
        by_name = {str(value.name): value for value in past}
        for pool, after in zip(state.pools, _advanced(insert, kernels, state, stored, past, accepted), strict=True):
            before = by_name[pool.name]
            after.name, after.type, after.shape = advanced_output(pool.name), before.type, before.shape
            graph.outputs.append(after)
    graph.remove(end, safe=True)
    model = ir.Model(graph, ir_version=10)
    lower_opset(model, kernels)
    return model


def _advanced(
    insert: Inserter,
    kernels: Kernels,
    state: DeferredState,
    stored: list[ir.Value],
    past: tuple[ir.Value, ...],
    accepted: Accepted,
) -> tuple[ir.Value, ...]:
    """The states, and scales of those of 8 bits or lengths of rings, after the accepted tokens."""
    advance = ADVANCE_BODIES[base_name(state.op)]
    stored = [*stored, *(insert.constant(weight) for weight in state.weights)]
    if state.ring is not None:
        operator, (before, *ring, lengths) = base_name(state.op), past
        flushed = RingNodes(insert, operator, lengths).flushed(before, ring)
        inner = in_order_of_bodies(insert, operator, flushed, before)
        after = in_order_of_declaration(insert, operator, advance(insert, kernels, stored, inner, accepted))
        # A product with the new state's size, so that no length is overwritten before the ring has been read.
        empty = insert.op("Cast", insert.op("Mul", insert.size(after, 1), insert.ints(0)), to=DType.INT32.onnx)
        has_tokens = insert.op("Unsqueeze", insert.op("Greater", accepted.counts, insert.scalar(0)), insert.ints(1))
        written = insert.op("Where", insert.op("Unsqueeze", has_tokens, insert.ints(2, 3)), after, before)
        return written, insert.op("Where", has_tokens, empty, lengths)
    if state.scales is None:
        return (advance(insert, kernels, stored, past[0], accepted),)
    dtype, axis = state.scales.dtype, state.scales.axis
    before = exact_state(insert, past[0], past[1], dtype, axis)
    before.type, before.shape = ir.TensorType(ir.DataType.FLOAT), past[0].shape
    new = rounded_state(insert, advance(insert, kernels, stored, before, accepted), dtype, axis)
    # Rounding the state of a row without accepted tokens again may change its scales.
    has_tokens = insert.op("Greater", accepted.counts, insert.scalar(0))
    return tuple(
        insert.op("Where", insert.op("Unsqueeze", has_tokens, insert.ints(*range(1, 1 + len(pool.shape)))), value, old)
        for pool, value, old in zip(state.pools, new, past, strict=True)
    )
