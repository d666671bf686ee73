"""Plugin layers of a parsed network: checks them against the request and finds the states that they update in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.network import layers_of
from hybridge.trt_plugins.catalog import DENSE_VERSION, spec_of
from hybridge.trt_plugins.plugins.layer import state_inputs

PLUGIN_LAYER = "PLUGIN_V3"


def check_plugin_layers(network: Any, nodes: Mapping[str, str]) -> None:
    """EngineError unless each of ``nodes`` (name to operator) is one plugin layer and has no layer of a body.

    TensorRT's parser calls a layer by its node; in the metadata of a layer that it makes of a function's body, the
    node that calls the function follows after a bar: "[ONNX Layer: add_2 | layers.1.ssm (update_ssm_state)]".
    """
    found = Counter(layer.name for layer in layers_of(network) if layer.type.name == PLUGIN_LAYER)
    for name, op in nodes.items():
        if found[name] != 1:
            raise EngineError(
                f"expected one plugin layer for node {name} ({op}), found {found[name]}: build with `plugins='off'`"
            )
    others = sorted(set(found) - set(nodes))
    if others:
        raise EngineError(f"expected plugin layers for operators alone, found {others[0]}: build with `plugins='off'`")
    bodies = {f"| {name} ({op})" for name, op in nodes.items()}
    for layer in layers_of(network):
        text = getattr(layer, "metadata", "")
        if "|" in text and any(body in text for body in bodies):
            raise EngineError(f"expected no layer besides the plugin, found {layer.name} ({text}): export again")


def state_aliases(network: Any, nodes: Mapping[str, str], version: int = DENSE_VERSION) -> dict[str, str]:
    """Network output to network input, for the states that plugin layers of that ``version`` of the domain replace.

    A state that another layer reads too is left out: TensorRT gives the plugin a copy of it.
    """
    layers = list(layers_of(network))
    read = (layer.get_input(index) for layer in layers for index in range(layer.num_inputs))
    readers = Counter(tensor.name for tensor in read if tensor is not None)
    aliases = {}
    for layer in layers:
        if layer.type.name != PLUGIN_LAYER:
            continue
        for output_index, input_index in state_inputs(spec_of(nodes[layer.name], version)).items():
            state, replaced = layer.get_input(input_index), layer.get_output(output_index)
            if state.is_network_input and replaced.is_network_output and readers[state.name] == 1:
                aliases[replaced.name] = state.name
    return aliases
