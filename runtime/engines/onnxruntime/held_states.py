"""States that a step left as they were, and the graph that advances them by the tokens that were right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from runtime.engines.held_modes import OperatorCost
from runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from runtime.engines.onnxruntime.replay_bodies import ADVANCE_BODIES

ACCEPTED = "accepted"
"""Axis of the advancing graph: the tokens by which the states of one row advance."""
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
    """Output of the advancing graph: the state of ``pool`` after the accepted tokens."""
    return f"{pool}.advanced"


def _last(insert: Inserter, states: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The state after the last accepted token, of ``states`` [1, accepted, ...]."""
    end = insert.ints(np.iinfo(np.int64).max)
    return insert.reshape(insert.op("Slice", states, insert.ints(-1), end, insert.ints(1)), *shape)


def advance_model(held: Sequence[HeldState]) -> ir.Model:
    """A model of the states of one row and of what its accepted tokens left behind; its outputs are the new states.

    Each may be written over its state.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="advance")
    end = ir.node("Identity", [add_input(graph, held[0].pool, ir.DataType.FLOAT, held[0].shape)])
    graph.append(end)
    insert = Inserter(graph, end)
    for state in held:
        past = add_input(graph, state.pool, ir.DataType.FLOAT, state.shape)
        kept = [add_input(graph, name, ir.DataType.FLOAT, [1, ACCEPTED, *shape]) for name, shape in state.kept]
        after = _last(insert, kept[0], state.shape) if state.is_kept else ADVANCE_BODIES[state.op](insert, kept, past)
        after.name, after.type, after.shape = advanced_output(state.pool), past.type, past.shape
        graph.outputs.append(after)
    graph.remove(end, safe=True)
    return ir.Model(graph, ir_version=10)
