"""Operators of the library of CPU kernels that read packed tokens as they are, without an axis of rows.

They find the number of rows in their state, and with ROW_STARTS the tokens of each. The Reshapes around them would take
as long as some of them do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.graph_form import ROW_STARTS
from hybridge.runtime.engines.onnxruntime.reshapes import reshape_sources


class _Tokens(NamedTuple):
    """Indices of an operator's inputs that are tokens; its first output has the shape of ``like``. starts: index of its
    input that tells which tokens are whose."""

    inputs: tuple[int, ...]
    like: int
    starts: int


_TOKENS: Mapping[str, _Tokens] = MappingProxyType(
    {
        "CausalConv1d": _Tokens((0,), 0, 4),
        "GatedDeltaRule": _Tokens((0, 1, 2, 3, 4), 2, 6),
        "UpdateSsmState": _Tokens((0, 2, 3, 5), 0, 8),
        "UpdateSsmState8Bit": _Tokens((0, 2, 3, 5), 0, 9),
    }
)
_ATTENTION, _ATTENTION_STARTS, _SEEN = "PagedAttention", 5, 3


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
    results = insert.op(
        node.op_type,
        *(packed.get(index, value) for index, value in enumerate(node.inputs)),
        domain=CPU_DOMAIN,
        outputs=len(node.outputs),
        **{name: attribute.value for name, attribute in node.attributes.items()},
    )
    # A check of draft tokens has no new states.
    y, *states = (results,) if isinstance(results, ir.Value) else results
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


def take_several_rows(model: ir.Model, pools: Collection[str], kv_pools: Collection[str]) -> bool:
    """Let a graph for one row, of which ``read_packed_tokens`` is done, take several, by the input ROW_STARTS.

    pools: of recurrent states. False, and nothing is changed, if an operator with states or keys reads one row alone.
    """
    graph = model.graph
    own = [node for node in graph if node.domain == CPU_DOMAIN]
    recurrent = [node for node in own if node.op_type in _TOKENS and _is_packed(node)]
    attention = [node for node in own if node.op_type == _ATTENTION]
    inputs = {value.name: value for value in graph.inputs}
    states = [inputs[name] for name in pools if name in inputs]
    keys = [inputs[name] for name in kv_pools if name in inputs]
    readers = {user for value in states for user, _ in value.uses()}
    if not readers <= set(recurrent) or len(attention) != len(keys):
        return False
    starts = add_input(graph, ROW_STARTS, ir.DataType.INT32, ["row_starts"])
    for node in recurrent:
        _give(node, _TOKENS[node.op_type].starts, starts)
    for node in attention:
        _give(node, _ATTENTION_STARTS, starts)
        seen = node.inputs[_SEEN]
        assert seen is not None
        seen.shape = ir.Shape(["rows"])
    for value in (*states, *(output for node in recurrent for output in node.outputs[1:])):
        assert value.shape is not None
        value.shape = ir.Shape(["states", *value.shape.dims[1:]])
    return True


def _give(node: ir.Node, index: int, value: ir.Value) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _is_packed(node: ir.Node) -> bool:
    shape = fixed_shape(node.inputs[_TOKENS[node.op_type].like])
    return shape is not None and len(shape) == 2
