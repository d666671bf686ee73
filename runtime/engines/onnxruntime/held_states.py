"""States that a step left as they were, and the graph that advances them by the tokens that were right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter, add_input
from runtime.engines.onnxruntime.replay_bodies import ADVANCE_BODIES

ACCEPTED = "accepted"
"""Axis of the advancing graph: the tokens by which the states of one row advance."""
_OPSET = 21


@dataclass(frozen=True)
class HeldState:
    """One pool whose states wait. op: its operator. shape: of the state of one slot, in the graphs.

    kept: name and shape, for each token, of every value that the tokens left behind.
    """

    op: str
    pool: str
    shape: tuple[int, ...]
    kept: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def numbers_of_token(self) -> int:
        """How many numbers one token leaves behind."""
        return sum(int(np.prod(shape)) for _, shape in self.kept)


def advanced_output(pool: str) -> str:
    """Output of the advancing graph: the state of ``pool`` after the accepted tokens."""
    return f"{pool}.advanced"


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
        after = ADVANCE_BODIES[state.op](insert, kept, past)
        after.name, after.type, after.shape = advanced_output(state.pool), past.type, past.shape
        graph.outputs.append(after)
    graph.remove(end, safe=True)
    return ir.Model(graph, ir_version=10)
