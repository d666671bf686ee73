"""Weights in the order in which the parts of their product are used, so that each part is one slice of it.

Some checkpoints store the queries, keys, values and gates of each head side by side: their graphs cut a product into
heads, each head into parts, and put the parts of all heads together, which copies them. A weight whose rows are in the
order of the result needs no copies. Its ``OrderedRows`` node takes the weights that make it and the attribute order:
rows of all of them, one after another.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.linear import LINEAR, is_plain, linears, take
from hybridge.runtime.engines.torch.fusion.quantized import stored_form
from hybridge.runtime.engines.torch.graph import DOMAIN, clean_graph, constant_ints, fuse, is_constant, producer

ORDERED_ROWS = "OrderedRows"
# Kernels read slices that begin at a multiple of this many elements.
_ALIGNED = 8


@dataclass(frozen=True)
class _Part:
    """A value and the columns of the product that it consists of, in the shape of its last axes."""

    value: ir.Value
    columns: np.ndarray

    def place(self) -> tuple[bool, int]:
        """By which parts are sorted: those after which others are aligned come first."""
        return self.columns.size % _ALIGNED != 0, int(self.columns.min())


def order_rows(graph: ir.Graph) -> None:
    """Reorder the rows of weights where that makes slices of what was put together from parts of a product."""
    for node in linears(graph):
        weight, product = take(node, "weight"), node.outputs[0]
        if weight is None or not is_plain(node) or product.is_graph_output() or stored_form(weight) is not None:
            continue
        if product.shape is None or not isinstance(product.shape[-1], int):
            continue
        parts = _parts(product, product.shape[-1])
        if parts is not None and any((np.diff(part.columns.ravel()) != 1).any() for part in parts):
            _reorder(graph, node, sorted(parts, key=_Part.place))
    clean_graph(graph)


def _parts(product: ir.Value, size: int) -> list[_Part] | None:
    """What other operators read of the product; None unless they read each column once."""
    leading = len(product.shape or ()) - 1
    known, waiting, traced = {product: np.arange(size)}, [product], set[ir.Node]()
    while waiting:
        for use in waiting.pop().uses():
            found = None if use.node in traced else _results(use.node, known, leading)
            if found is not None:
                traced.add(use.node)
                waiting += use.node.outputs
                known |= zip(use.node.outputs, found, strict=True)
    parts = [
        _Part(value, columns)
        for value, columns in known.items()
        if value.is_graph_output() or any(use.node not in traced for use in value.uses())
    ]
    read = np.sort(np.concatenate([part.columns.ravel() for part in parts]))
    return parts if np.array_equal(read, np.arange(size)) else None


def _results(node: ir.Node, known: dict[ir.Value, np.ndarray], leading: int) -> list[np.ndarray] | None:
    """The columns of the node's outputs, where it only cuts its inputs' last axes or puts them together."""
    if node.domain != "":
        return None
    axis = node.attributes.get_int("axis", 0)
    if node.op_type == "Concat":
        given = [known.get(value) for value in node.inputs]  # type: ignore[arg-type]
        return None if axis != -1 or any(item is None for item in given) else [np.concatenate(given, -1)]  # type: ignore
    sizes = constant_ints(node.inputs[1]) if len(node.inputs) == 2 else None
    columns = known.get(node.inputs[0])  # type: ignore[arg-type]
    if columns is None or sizes is None:
        return None
    if node.op_type == "Split" and axis == -1:
        return np.split(columns, np.cumsum(sizes)[:-1], -1)
    if node.op_type == "Reshape" and sizes[:leading] == (0,) * leading:
        shape = sizes[leading:]
        return [columns.reshape(shape)] if shape and 0 not in shape and shape.count(-1) <= 1 else None
    return None


def _reorder(graph: ir.Graph, node: ir.Node, parts: list[_Part]) -> None:
    """Compute ``parts`` as slices of the product by a reordered weight."""
    product, weight, columns = node.outputs[0], take(node, "weight"), [part.columns for part in parts]
    assert weight is not None and product.shape is not None and weight.shape is not None
    concat = producer(weight, "Concat")
    weights = list(concat.inputs) if concat is not None and is_constant(weight) else [weight]
    order = np.concatenate([each.ravel() for each in columns]).astype(np.int64)
    rows = ir.node(ORDERED_ROWS, weights, {"order": order.tolist()}, domain=DOMAIN)
    sizes = ir.node("Constant", [], {"value_ints": [each.size for each in columns]})
    ordered = rows.outputs[0]
    # Programs share what they compute of weights by its name.
    ordered.name = f"{weight.name}.rows_{zlib.crc32(order.tobytes()):08x}"
    ordered.type, ordered.shape = weight.type, weight.shape
    sizes.outputs[0].name = f"{product.name}.sizes"
    result = ir.Value(name=f"{product.name}.ordered", type=product.type, shape=product.shape)
    linear = ir.Node(
        node.domain, LINEAR, [node.inputs[0], ordered, *node.inputs[2:]], node.attributes.values(), outputs=[result]
    )
    graph.insert_before(node, [rows, sizes, linear])
    leading = len(product.shape) - 1
    slices = ir.node("Split", [result, sizes.outputs[0]], {"axis": -1}, num_outputs=len(parts))
    graph.insert_before(node, slices)
    for value, part in zip(slices.outputs, parts, strict=True):
        value.name, value.type = f"{part.value.name}.slice", product.type
        value.shape = ir.Shape([*product.shape[:-1], part.columns.size])
        shape = ir.node("Constant", [], {"value_ints": [*(0,) * leading, *part.columns.shape]})
        shape.outputs[0].name = f"{part.value.name}.axes"
        graph.insert_before(node, shape)
        fuse([part.value], "Reshape", [value, shape.outputs[0]], {}, domain="")
