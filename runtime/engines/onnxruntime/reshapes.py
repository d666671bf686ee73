"""Chains of Reshapes as one Reshape, or none.

Bodies of operators define the shapes of their inputs, so a row of numbers is reshaped several times between two
products. For one token each of these nodes costs as much as an addition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node

# Operators that return the elements of their first input in the same order.
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
# Sizes of a value, -1 for one known only at run time.
_Sizes = tuple[int, ...]


def join_reshapes(model: ir.Model) -> None:
    """Replace every chain of Reshapes whose last shape is known by one Reshape of the first value, or by a value in the
    chain that has this shape already."""
    for node in list(model.graph):
        if not _is_reshape(node):
            continue
        sizes, sources = _sizes(node.outputs[0]), list(reshape_sources(node.outputs[0]))
        same = next((value for value in sources if _same(value, node.outputs[0])), None)
        if same is not None and not node.outputs[0].is_graph_output():
            shape = same.shape
            replace_node(node, [same])
            same.shape = shape or same.shape
        elif sizes is not None and len(sources) > 1:
            insert = Inserter(model.graph, node)
            replace_node(node, [insert.op("Reshape", sources[-1], insert.ints(*sizes))])


def reshape_gathers_of_one(model: ir.Model) -> None:
    """Replace every GatherND of one element along an axis of size 1, as of the last of one token, by a Reshape."""
    for node in list(model.graph):
        if node.op_type != "GatherND" or node.domain:
            continue
        data, batch_dims = node.inputs[0], node.attributes.get("batch_dims")
        shape, found = fixed_shape(data), fixed_shape(node.outputs[0])
        if batch_dims is None or batch_dims.as_int() != 1 or shape is None or found is None:
            continue
        if shape[1] == 1 and len(found) == len(shape) - 1 and None not in found[1:] and found[1:] == shape[2:]:
            insert = Inserter(model.graph, node)
            replace_node(node, [insert.op("Reshape", data, insert.ints(-1, *(int(size or 0) for size in found[1:])))])


def reshape_sources(value: ir.Value) -> Iterator[ir.Value]:
    """The values of which ``value`` is a Reshape, from its own input to the one that is not reshaped."""
    producer = value.producer()
    while producer is not None and _is_reshape(producer):
        source = producer.inputs[0]
        assert source is not None
        yield source
        producer = source.producer()


def _is_reshape(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _RESHAPES and not node.domain


def _sizes(value: ir.Value) -> _Sizes | None:
    """The sizes; None if more than one is unknown, or if one is 0."""
    found = fixed_shape(value)
    if found is not None and found.count(None) <= 1:
        return None if 0 in found else tuple(-1 if size is None else size for size in found)
    producer = value.producer()
    if producer is None or producer.op_type != "Reshape" or producer.domain:
        return None
    shape = producer.inputs[1]
    if shape is None or shape.const_value is None:
        return None
    sizes = np.asarray(shape.const_value.numpy()).tolist()
    # 0 stands for a size of the input.
    return None if 0 in sizes else tuple(sizes)


def _same(first: ir.Value, second: ir.Value) -> bool:
    """Whether two values with equally many elements have the same shape: all sizes but one are equal numbers, or all
    are equal by number or by name."""
    sizes = _sizes(first)
    if sizes is not None and sizes == _sizes(second):
        return True
    names = _names(first)
    return names is not None and None not in names and names == _names(second)


def _names(value: ir.Value) -> list[int | str | None] | None:
    return None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape.dims]
