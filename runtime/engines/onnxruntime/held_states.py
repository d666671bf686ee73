"""States that a step left as they were, and the graph that advances them by the tokens that were right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.paged import ROWS
from hybridge.runtime.engines.held_modes import OperatorCost
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.replay_bodies import ADVANCE_BODIES, Accepted

ACCEPTED = "accepted"
"""Input of the advancing graph: by how many of its first tokens each row advances, int64 [rows]."""
_OPSET = 21


@dataclass(frozen=True)
class HeldState:
    """One pool whose states wait. op: its operator. shape: of the state of one slot, in the graphs.

    kept: name and shape, for each token, of every value that the tokens left behind. is_kept: it is the state after a
    token.
    """

    op: str
    pool: str
    shape: tuple[int, ...]
    kept: tuple[tuple[str, tuple[int, ...]], ...]
    is_kept: bool = False

    @property
    def cost(self) -> OperatorCost:
        """In float32."""
        return OperatorCost(4 * int(np.prod(self.shape)), 4 * self.numbers_of_token)

    @property
    def numbers_of_token(self) -> int:
        """How many numbers one token leaves behind."""
        return sum(int(np.prod(shape)) for _, shape in self.kept)


def advanced_output(pool: str) -> str:
    """Output of the advancing graph: the states of ``pool`` after the accepted tokens."""
    return f"{pool}.advanced"


def advance_model(held: Sequence[HeldState], kernels: Kernels) -> ir.Model:
    """A model of the states of rows [rows, ...] and of what their tokens left behind [rows, seq, ...].

    Its outputs are the states after the ``ACCEPTED`` tokens of each row, those of 0 as they were; what the tokens
    behind these left has to be zero. Each may be written over its state.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="advance")
    counts = add_input(graph, ACCEPTED, ir.DataType.INT64, [ROWS])
    end = ir.node("Identity", [counts])
    graph.append(end)
    insert, inputs = Inserter(graph, end), []
    for state in held:
        past = add_input(graph, state.pool, ir.DataType.FLOAT, [ROWS, *state.shape])
        kept = [add_input(graph, name, ir.DataType.FLOAT, [ROWS, SEQ, *shape]) for name, shape in state.kept]
        inputs.append((past, kept))
    accepted = Accepted(counts, insert.size(inputs[0][1][0], 1))
    for state, (past, kept) in zip(held, inputs, strict=True):
        body = _last if state.is_kept else ADVANCE_BODIES[state.op]
        after = body(insert, kernels, kept, past, accepted)
        after.name, after.type, after.shape = advanced_output(state.pool), past.type, past.shape
        graph.outputs.append(after)
    graph.remove(end, safe=True)
    return ir.Model(graph, ir_version=10)


def _last(insert: Inserter, kernels: Kernels, kept: list[ir.Value], state: ir.Value, accepted: Accepted) -> ir.Value:
    """The state after the last accepted token, of those after each [rows, seq, ...]; ``state`` where there is none."""
    assert state.shape is not None
    before = insert.op("Max", insert.op("Sub", accepted.counts, insert.ints(1)), insert.ints(0))
    found = insert.op("GatherND", kept[0], insert.op("Unsqueeze", before, insert.ints(1)), batch_dims=1)
    moves = insert.op("Greater", accepted.counts, insert.ints(0))
    ones = [1] * (len(state.shape) - 1)
    after: ir.Value = insert.op("Where", insert.op("Reshape", moves, insert.ints(-1, *ones)), found, state)
    return after
