"""Operators of the library of CPU kernels that read packed tokens as they are, without an axis of rows.

They find the number of rows in their state. The Reshapes around them would take as long as some of them do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.reshapes import reshape_sources


class _Tokens(NamedTuple):
    """Indices of an operator's inputs that are tokens; its first output has the shape of ``like``."""

    inputs: tuple[int, ...]
    like: int


_TOKENS: Mapping[str, _Tokens] = MappingProxyType(
    {
        "CausalConv1d": _Tokens((0,), 0),
        "GatedDeltaRule": _Tokens((0, 1, 2, 3, 4), 2),
        "UpdateSsmState": _Tokens((0, 2, 3, 5), 0),
        "UpdateSsmState8Bit": _Tokens((0, 2, 3, 5), 0),
    }
)


def read_packed_tokens(model: ir.Model, is_one_row: bool) -> None:
    """Let every operator whose tokens are Reshapes of [tokens, width] read those, in a graph for one row, or for rows
    of one token."""
    for node in list(model.graph):
        if node.domain == CPU_DOMAIN and node.op_type in _TOKENS:
            _read_packed(model.graph, node, _TOKENS[node.op_type], is_one_row)


def _read_packed(graph: ir.Graph, node: ir.Node, tokens: _Tokens, is_one_row: bool) -> None:
    packed = {index: _packed(node.inputs[index]) for index in tokens.inputs}
    like = packed[tokens.like]
    if like is None or like.shape is None or None in packed.values():
        return
    insert, (count, width) = Inserter(graph, node), like.shape.dims
    assert isinstance(width, int)
    y, *states = insert.op(
        node.op_type,
        *(packed.get(index, value) for index, value in enumerate(node.inputs)),
        domain=CPU_DOMAIN,
        outputs=len(node.outputs),
        **{name: attribute.value for name, attribute in node.attributes.items()},
    )
    y.type, y.shape = like.type, ir.Shape(like.shape.dims)
    rows = insert.op("Reshape", y, insert.ints(*((1, -1, width) if is_one_row else (-1, 1, width))))
    rows.type, rows.shape = y.type, ir.Shape([1, count, width] if is_one_row else [count, 1, width])
    replace_node(node, [rows, *states])


def _packed(value: ir.Value | None) -> ir.Value | None:
    """The tokens [tokens, width] of which ``value`` [rows, time, width] is a Reshape; None if it is of no such."""
    shape = fixed_shape(value)
    if value is None or shape is None or len(shape) != 3 or shape[2] is None:
        return None
    for source in reshape_sources(value):
        found = fixed_shape(source)
        if found is not None and len(found) == 2 and found[1] == shape[2]:
            return source
    return None
