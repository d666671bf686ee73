"""A graph of the speculative form as one of the packed form, for steps without candidate tokens."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.names import NUM_ACCEPTED_TOKENS
from hybridge.runtime.engines.torch.graph import fuse
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.packed import PACKED_VERSION
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS as ACCEPTED
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION, is_speculative


def use_one_slot(graph: ir.Graph) -> None:
    """Let the recurrent operators take one slot a row, which its rows read and write."""
    for node in list(graph):
        if node.domain != DOMAIN:
            continue
        spec = spec_of(node.op_type, SPECULATIVE_VERSION)
        if is_speculative(spec):
            inputs = list(node.inputs)
            del inputs[spec.input_index(ACCEPTED.name)]
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            fuse(list(node.outputs), node.op_type, inputs, attributes, DOMAIN).name = node.name
            graph.remove(node, safe=True)
    graph.opset_imports[DOMAIN] = PACKED_VERSION
    for value in list(graph.inputs):
        if value.name == NUM_ACCEPTED_TOKENS and not value.uses():
            graph.inputs.remove(value)
