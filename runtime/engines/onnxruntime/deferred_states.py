"""States that a step leaves unchanged, and the graph that replays the accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.paged import ROWS
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.replay_bodies import ADVANCE_BODIES, Accepted
from hybridge.runtime.engines.rollback.modes import OperatorCost

ACCEPTED = "accepted"
"""Input of the replaying graph: by how many of its first tokens each row advances, int64 [rows]."""
_OPSET = 21


@dataclass(frozen=True)
class DeferredState:
    """One pool whose states a graph leaves unchanged. op: its operator. shape: of a slot's state, in the graph.

    stored: name and shape, for each token, of every output that the tokens leave behind: what a replay reads, or with
    ``is_snapshot`` the state after the token.
    """

    op: str
    pool: str
    shape: tuple[int, ...]
    stored: tuple[tuple[str, tuple[int, ...]], ...]
    is_snapshot: bool = False

    @property
    def cost(self) -> OperatorCost:
        """The cost of a rollback, in bytes of float32."""
        return OperatorCost(4 * int(np.prod(self.shape)), None if self.is_snapshot else self.token_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token stores, in float32."""
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
        past = add_input(graph, state.pool, ir.DataType.FLOAT, [ROWS, *state.shape])
        stored = [add_input(graph, name, ir.DataType.FLOAT, [ROWS, SEQ, *shape]) for name, shape in state.stored]
        inputs.append((past, stored))
    accepted = Accepted(counts, insert.size(inputs[0][1][0], 1))
    for state, (past, stored) in zip(states, inputs, strict=True):
        after = ADVANCE_BODIES[state.op](insert, kernels, stored, past, accepted)
        after.name, after.type, after.shape = advanced_output(state.pool), past.type, past.shape
        graph.outputs.append(after)
    graph.remove(end, safe=True)
    return ir.Model(graph, ir_version=10)
