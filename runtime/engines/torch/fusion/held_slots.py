"""A graph in the form of steps that hold states: every recurrent operator has a slot for each candidate token."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from hybridge.artifact.names import NUM_ACCEPTED_TOKENS
from hybridge.runtime.engines.torch.graph import KEPT_STATE_INDICES, engine_input, fuse
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, STATE_INDICES, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS as ACCEPTED
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION, is_speculative


def use_candidate_slots(graph: ir.Graph) -> None:
    """Let the recurrent operators of a graph of the packed form take a slot for each candidate token."""
    for node in list(graph):
        if node.domain != DOMAIN:
            continue
        spec = spec_of(node.op_type, SPECULATIVE_VERSION)
        if is_speculative(spec):
            inputs = list(node.inputs)
            inputs.insert(spec.input_index(ACCEPTED.name), engine_input(graph, NUM_ACCEPTED_TOKENS))
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            fuse(list(node.outputs), node.op_type, inputs, attributes, DOMAIN).name = node.name
            graph.remove(node, safe=True)
    graph.opset_imports[DOMAIN] = SPECULATIVE_VERSION


def keep_states(graph: ir.Graph, operators: Container[str]) -> None:
    """Let ``operators`` of a graph of the speculative form take KEPT_STATE_INDICES as their slots."""
    for node in graph:
        if node.domain == DOMAIN and node.op_type in operators:
            place = spec_of(node.op_type, SPECULATIVE_VERSION).input_index(STATE_INDICES.name)
            node.replace_input_with(place, engine_input(graph, KEPT_STATE_INDICES))


def operators_of_pools(graph: ir.Graph) -> dict[str, str]:
    """The recurrent operator that each pool of states of a packed or speculative graph belongs to."""
    found = {}
    for node in graph:
        if node.domain != DOMAIN:
            continue
        spec = spec_of(node.op_type, PACKED_VERSION)
        version = graph.opset_imports[DOMAIN]
        for tensor, value in zip(spec_of(node.op_type, version).inputs, node.inputs, strict=False):
            if STATE_INDICES in spec.inputs and is_pool(tensor) and value is not None:
                found[str(value.name)] = node.op_type
    return found
