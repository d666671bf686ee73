"""Give the recurrent operators of a traced graph their forms over states of 8 bits, or over states with rings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import ExportError
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.specs.state_forms import SUFFIX_8BIT, SUFFIX_RING


@dataclass(frozen=True)
class _Form:
    """suffix: of the operator's name. state: its binding. more: the states behind it, which only this form has."""

    suffix: str
    state: Binding
    more: tuple[Binding, ...]


def use_state_forms(graph: ir.Graph, config: RuntimeConfig) -> None:
    """Change the recurrent operators of ``graph`` to the forms in ``config``, with their scales or rings as states.

    ExportError where a state is not the input of one operator.
    """
    inputs, outputs = ({str(v.name): v for v in values} for values in (graph.inputs, graph.outputs))
    for form in _forms(config):
        state, new_state = inputs[form.state.name], outputs[str(form.state.replaced_by)]
        node = new_state.producer()
        uses = [(user, index) for user, index in state.uses() if user.op_type != "Shape"]
        if node is None or node.domain != DOMAIN or [user for user, _ in uses] != [node]:
            raise ExportError(
                f"{form.state.name}: expected a state that one operator reads and replaces, found another graph"
            )
        more = [_value(binding.name, binding) for binding in form.more]
        given, behind = list(node.inputs), uses[0][1] + 1
        given[behind:behind] = more
        count = len(node.outputs) + len(more)
        made = ir.Node(
            DOMAIN, node.op_type + form.suffix, given, node.attributes.values(), num_outputs=count, name=node.name
        )
        graph.insert_before(node, made)
        for before, after in zip(node.outputs, made.outputs, strict=False):
            after.name, after.type, after.shape = before.name, before.type, before.shape
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        for value, binding in zip(made.outputs[len(node.outputs) :], form.more, strict=True):
            like = _value(str(binding.replaced_by), binding)
            value.name, value.type, value.shape = like.name, like.type, like.shape
            outputs[str(value.name)] = value
        inputs |= {str(value.name): value for value in more}
        new_state = made.outputs[len(node.outputs) - 1]
        outputs[str(new_state.name)] = new_state
        for value in (state, new_state):
            value.type = ir.TensorType(ir.DataType(form.state.dtype.onnx))
    graph.inputs[:] = [inputs[binding.name] for binding in config.bindings.inputs]
    graph.outputs[:] = [outputs[binding.name] for binding in config.bindings.outputs]


def _forms(config: RuntimeConfig) -> Iterator[_Form]:
    states = {binding.name: binding for binding in config.bindings.states}
    for own in config.state_scales:
        yield _Form(SUFFIX_8BIT, states[own.name], (states[own.scales],))
    for ring in config.state_rings:
        yield _Form(SUFFIX_RING, states[ring.state], tuple(states[name] for name in ring.names))


def _value(name: str, binding: Binding) -> ir.Value:
    dtype = ir.TensorType(ir.DataType(binding.dtype.onnx))
    return ir.Value(name=name, type=dtype, shape=ir.Shape(binding.shape))
