"""The artifact's graph, and small edits of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

# Nodes that only this engine knows.
DOMAIN = "hybridge.torch"
# The input that such nodes get the step's StepLengths by.
LENGTHS = "engine.lengths"
# The input of the node that computes the logits: memory to write them to, or None.
RESULT = "engine.result"
# Inputs of steps with draft tokens (draft_inputs.py): the slots of operators with snapshots, in place of state_indices,
# and which tokens have their inputs stored.
SNAPSHOT_SLOTS, STORED_TOKENS = "snapshot_slots", "stored_tokens"


def fuse(
    values: Sequence[ir.Value],
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any],
    domain: str = DOMAIN,
) -> ir.Node:
    """Let a new node compute ``values``; what computed them is left for ``clean_graph`` to remove."""
    producer = values[0].producer()
    assert producer is not None and producer.graph is not None
    graph = producer.graph
    assert isinstance(graph, ir.Graph)
    node = ir.node(op_type, inputs, attributes or None, domain=domain, num_outputs=len(values))
    graph.insert_before(producer, node)
    for old, new in zip(values, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        name = old.name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = f"{name}.before", name
    return node


def clean_graph(graph: ir.Graph) -> None:
    """Remove nodes that nothing uses and put every node after those whose values it reads."""
    for node in reversed(list(graph)):
        if not any(value.is_graph_output() or value.uses() for value in node.outputs):
            graph.remove(node, safe=True)
    graph.sort()


def lengths_input(graph: ir.Graph) -> ir.Value:
    """The graph input LENGTHS, added where it is not there yet."""
    return engine_input(graph, LENGTHS)


def engine_input(graph: ir.Graph, name: str) -> ir.Value:
    """The graph input of that name, added where it is not there yet."""
    for value in graph.inputs:
        if value.name == name:
            return value
    added = ir.Value(name=name)
    graph.inputs.append(added)
    return added


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that computes ``value`` if it is of that operator."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == (domain, op_type) else None


def only_use(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The one node that reads ``value``, if it is of that operator and the value is not an output of the graph."""
    if value is None or value.is_graph_output():
        return None
    users = list(value.uses())
    if len(users) != 1:
        return None
    node = users[0].node
    return node if (node.domain, node.op_type) == (domain, op_type) else None


def is_inner(value: ir.Value | None) -> bool:
    """Whether ``value`` is read once and is not an output of the graph: it can be fused away."""
    return value is not None and not value.is_graph_output() and len(list(value.uses())) == 1


def skip(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """The input of the node of that operator that computes ``value``, if it has no other reader; else ``value``."""
    node = producer(value, op_type)
    return node.inputs[0] if node is not None and is_inner(value) else value


def is_constant(value: ir.Value | None) -> bool:
    """Whether ``value`` is the same in every step: a weight, a constant, or computed from such alone."""
    if value is None or value.is_initializer():
        return value is not None
    node = value.producer()
    return node is not None and node.op_type != "Shape" and all(is_constant(item) for item in node.inputs)


def constant_ints(value: ir.Value | None) -> tuple[int, ...] | None:
    """The integers of a constant, or None when ``value`` is not one that the file carries."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype not in _INTEGERS:
        return None
    return tuple(int(item) for item in tensor.numpy().ravel())


def constant_floats(value: ir.Value | None) -> tuple[float, ...] | None:
    """The numbers of a floating constant that the file itself carries, else None."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype in _INTEGERS:
        return None
    return tuple(float(item) for item in tensor.numpy().ravel())


def rank(value: ir.Value | None) -> int | None:
    """Number of axes, or None where the graph does not say."""
    if value is None or value.shape is None:
        return None
    return len(value.shape)


_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
