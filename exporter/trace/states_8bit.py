"""Give the recurrent operators of a traced graph their forms over states of 8 bits."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import ExportError
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.specs.state_8bit import SUFFIX


def use_8bit_states(graph: ir.Graph, config: RuntimeConfig) -> None:
    """Change every recurrent state of ``graph`` to the type in ``config``, with its scales as one more state.

    ExportError where a state is not the input of one operator.
    """
    inputs, outputs = ({str(v.name): v for v in values} for values in (graph.inputs, graph.outputs))
    states = {binding.name: binding for binding in config.bindings.states}
    for own in config.state_scales:
        state, new_state = inputs[own.name], outputs[str(states[own.name].replaced_by)]
        node = new_state.producer()
        uses = [(user, index) for user, index in state.uses() if user.op_type != "Shape"]
        if node is None or node.domain != DOMAIN or [user for user, _ in uses] != [node]:
            raise ExportError(f"{own.name}: expected a state that one operator reads and replaces, found another graph")
        shape, replaced = ir.Shape(states[own.scales].shape), str(states[own.scales].replaced_by)
        scales = ir.Value(name=own.scales, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
        given = list(node.inputs)
        given.insert(uses[0][1] + 1, scales)
        made = ir.Node(DOMAIN, node.op_type + SUFFIX, given, node.attributes.values(), num_outputs=3, name=node.name)
        graph.insert_before(node, made)
        for before, after in zip(node.outputs, made.outputs, strict=False):
            after.name, after.type, after.shape = before.name, before.type, before.shape
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        new_state, new_scales = made.outputs[1:]
        new_scales.name, new_scales.type, new_scales.shape = replaced, scales.type, scales.shape
        inputs[own.scales] = scales
        outputs |= {str(value.name): value for value in (new_state, new_scales)}
        for value in (state, new_state):
            value.type = ir.TensorType(ir.DataType(own.dtype.onnx))
    graph.inputs[:] = [inputs[binding.name] for binding in config.bindings.inputs]
    graph.outputs[:] = [outputs[binding.name] for binding in config.bindings.outputs]
