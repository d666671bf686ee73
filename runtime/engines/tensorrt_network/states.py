"""States that a network updates: in place, or by an output that is copied back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter


def computed_specs(states: Sequence[Binding], widen: bool) -> tuple[Binding, ...]:
    """The artifact's states with the types in which they are computed."""
    narrow = (DType.FLOAT16, DType.BFLOAT16) if widen else ()
    return tuple(replace(s, dtype=DType.FLOAT32) if s.dtype in narrow else s for s in states)


def run_in_place(
    network: NetworkInterpreter,
    specs: Sequence[Binding],
    arrays: Mapping[str, np.ndarray],
    states: Mapping[str, Tensor],
    shown: Sequence[str] = (),
) -> dict[str, Tensor]:
    """One run on ``arrays`` and ``states`` by input name; returns the outputs and the inner tensors ``shown``.

    The output for a state that the network does not update in place is copied into it.
    """
    inputs = {}
    for name in network.description.inputs:
        dtype = network.input_type(name)
        if name in states:
            inputs[name] = states[name].view(dtype)
        else:
            inputs[name] = torch.from_numpy(np.ascontiguousarray(arrays[name])).to(dtype)
    found = network.run(inputs, shown)
    for spec in specs:
        output = str(spec.replaced_by)
        if output in found and output not in network.aliases.shared:
            states[spec.name].copy_(found[output].view(states[spec.name].dtype))
    return found


def check_values(network: NetworkInterpreter, values: Sequence[str]) -> None:
    """EngineError if the network lacks a tensor of one of these names."""
    for name in values:
        if name not in network.description.tensors:
            raise EngineError(f"expected a tensor {name} in the network, found none: export the checkpoint again")
