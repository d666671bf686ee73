"""The node that fusion/state_rings.py makes of a recurrent operator."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.fusion.state_rings import OPERATOR, STATE_RING
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ring_operator import RingOperator
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.specs.ring import RINGS


def _state_ring(context: NodeContext) -> Run:
    name = str(context.attributes.take(OPERATOR))
    operator = RingOperator(name, OPS[name].complete_attributes(context.attributes.rest()), context.kernels)
    in_place = context.is_in_place(1, operator.state)
    count = operator.inputs

    def run(*given: object) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = list(given[:count])
        (rows,) = (each for each in inputs if isinstance(each, StepRows))
        inputs[inputs.index(rows)] = rows.bounds
        state = inputs[operator.state]
        assert isinstance(state, torch.Tensor)
        inputs[operator.state] = state = state if in_place else state.clone()
        *ring, lengths = (
            each for each in given[count : count + len(RINGS[name]) + 1] if isinstance(each, torch.Tensor)
        )
        gate = given[-1] if len(given) > count + len(RINGS[name]) + 1 else None
        assert gate is None or isinstance(gate, torch.Tensor)
        y = operator.step(inputs, ring, lengths, gate, rows.singles)
        return (y if gate is None else y.flatten(1)), state

    return run


FUSED_ROWS: dict[str, Builder] = {STATE_RING: _state_ring}
