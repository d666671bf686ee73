"""Operators that an ONNX Runtime of opset 23 cannot run, in operators that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node

# Numbers that QuantizeLinear limits its results to; Cast itself limits those of float8.
_LIMITS: Mapping[int, tuple[float, float] | None] = MappingProxyType(
    {ir.DataType.INT8: (-128.0, 127.0), ir.DataType.FLOAT8E4M3FN: None}
)

# Operators whose output has the type of their first input.
_KEEPS_TYPE = frozenset({"Concat", "Gather", "Reshape"})


def use_older_operators(nodes: Iterable[ir.Node]) -> None:
    """Replace those of ``nodes``, of graphs and of functions, that have such a form; others stay."""
    for node in nodes:
        replace = None if node.domain else _FORMS.get(node.op_type)
        if replace is not None and isinstance(node.graph, ir.Graph):
            found = replace(node, Inserter(node.graph, node))
            if found is not None:
                replace_node(node, [found])


def _scattered(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """New tokens [rows, heads, tokens, channels] in a cache [rows, heads, positions, channels] from ``start``."""
    is_linear = node.attributes.get_string("mode", "linear") == "linear"
    if len(node.inputs) != 3 or None in node.inputs or node.attributes.get_int("axis", -2) != 2 or not is_linear:
        return None
    past, update, start = node.inputs
    zero, one = (insert.op("Constant", value_int=value) for value in (0, 1))
    count = insert.op("Squeeze", insert.op("Shape", update, start=2, end=3))
    first = insert.op("Unsqueeze", start, _ints(insert, 1))
    positions = insert.op("Add", first, insert.op("Range", zero, count, one))
    positions = insert.op("Unsqueeze", positions, _ints(insert, 1, 3))
    everywhere = insert.op("Expand", positions, insert.op("Shape", update))
    return insert.op("ScatterElements", past, everywhere, update, axis=2)


def _quantized(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """``x`` divided by one scale, in a narrow type without zero points. ONNX Runtime 1.23 ends at opset 22 here."""
    kind, others = node.attributes.get_int("output_dtype", 0), {"axis", "block_size", "output_dtype", "precision"}
    is_plain = not any(node.attributes.get_int(name, 0) for name in ("block_size", "precision"))
    if len(node.inputs) != 2 or kind not in _LIMITS or not is_plain or node.attributes.keys() - others:
        return None
    x, scale = node.inputs
    sizes = fixed_shape(scale)
    if "axis" in node.attributes if sizes is None else any(size != 1 for size in sizes):
        return None  # a scale per channel, or maybe one
    result, limits = insert.op("Div", x, scale), _LIMITS[kind]
    if limits is not None:
        bounds = (insert.op("Constant", value_float=limit) for limit in limits)
        result = insert.op("Clip", insert.op("Round", result), *bounds)
    return insert.op("Cast", result, to=kind)


def _chosen(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """A choice between int8 numbers, which ONNX Runtime 1.23 makes between wider ones only."""
    condition, *values = node.inputs
    if not any(_is_int8(value) for value in values):
        return None
    wide = [insert.op("Cast", value, to=ir.DataType.INT32) for value in values]
    return insert.op("Cast", insert.op("Where", condition, *wide), to=ir.DataType.INT8)


def _is_int8(value: ir.Value | None) -> bool:
    """Whether ``value`` is known to be int8. In a function, whose values have no types, the Cast behind it tells."""
    while value is not None and value.dtype is None:
        node = value.producer()
        if node is None or node.domain:
            return False
        if node.op_type == "Cast":
            return node.attributes.get_int("to") == ir.DataType.INT8
        value = node.inputs[0] if node.op_type in _KEEPS_TYPE else None
    return value is not None and value.dtype == ir.DataType.INT8


def _ints(insert: Inserter, *values: int) -> ir.Value:
    """As ``Inserter.ints``, for a function too, which has no initializers."""
    return insert.op("Constant", value_ints=list(values))


_FORMS: Mapping[str, Callable[[ir.Node, Inserter], ir.Value | None]] = MappingProxyType(
    {"TensorScatter": _scattered, "QuantizeLinear": _quantized, "Where": _chosen}
)
