"""Packed recurrent operators of a paged graph as the engine's dense bodies over gathered states.

A step of this engine is regular: one row, or one token of every row. So its tokens are rows by a Reshape, and a body
for dense rows does the rest between a Gather of the rows' states and a scatter back into the pool, which is updated in
place. An operator without a body keeps the artifact's own function.
"""

from __future__ import annotations

import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from runtime.engines.onnxruntime.kernels import Kernels
from runtime.engines.onnxruntime.op_bodies import BODIES
from runtime.engines.onnxruntime.update_ssm_state import POOL
from trt_plugins.catalog import DOMAIN, spec_of
from trt_plugins.spec import TensorSpec
from trt_plugins.specs.packed import PACKED_VERSION, QUERY_START_LOC, STATE_INDICES, has_rows, is_packed, is_pool


def use_dense_bodies(model: ir.Model, kernels: Kernels, one_row: bool) -> None:
    """Replace every packed node that has a body for the installed ONNX Runtime.

    ``one_row``: a step is one row of any number of tokens; else every row has one token.
    """
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type not in BODIES:
            continue
        if has_rows(spec_of(node.op_type, PACKED_VERSION)):
            _replace(model.graph, node, kernels, one_row)
            continue
        outputs = BODIES[node.op_type](node, Inserter(model.graph, node), kernels, False)
        if outputs is not None:
            replace_node(node, outputs)


def _replace(graph: ir.Graph, node: ir.Node, kernels: Kernels, one_row: bool) -> None:
    spec = spec_of(node.op_type, PACKED_VERSION)
    insert = Inserter(graph, node)
    named = dict(zip((tensor.name for tensor in spec.inputs), node.inputs, strict=True))
    slots = named[STATE_INDICES.name]
    assert slots is not None
    pools = {node.inputs[spec.output_source(output)]: node.outputs[i] for i, output in enumerate(spec.outputs)}
    inputs: list[ir.Value | None] = []
    for tensor, value in zip(spec.inputs, node.inputs, strict=True):
        if tensor == QUERY_START_LOC:
            inputs.append(slots)  # bodies of regular rows ask for no lengths
        elif tensor != STATE_INDICES:
            inputs.append(None if value is None else _dense_input(insert, tensor, value, slots, pools, one_row))
    dense = ir.node(node.op_type, inputs, dict(node.attributes), domain=DOMAIN, num_outputs=len(spec.outputs))
    graph.insert_before(node, dense)
    for output, value in zip(spec.outputs, dense.outputs, strict=True):
        source = inputs[spec.output_source(output)]
        assert source is not None
        value.type, value.shape = source.type, source.shape
    found = BODIES[node.op_type](dense, Inserter(graph, dense), kernels, False)
    if found is None:
        graph.remove(dense, safe=True)
        return
    outputs = [
        _packed_output(insert, tensor, node.inputs[spec.output_source(tensor)], slots, value, old)
        for tensor, value, old in zip(spec.outputs, found, node.outputs, strict=True)
    ]
    graph.remove(dense, safe=True)
    replace_node(node, outputs)


def _dense_input(
    insert: Inserter,
    tensor: TensorSpec,
    value: ir.Value,
    slots: ir.Value,
    pools: dict[ir.Value | None, ir.Value],
    one_row: bool,
) -> ir.Value:
    """Rows of tokens, or the states of the rows."""
    assert value.shape is not None
    if is_packed(tensor):
        tokens, *rest = value.shape.dims
        rows = insert.op("Unsqueeze", value, insert.ints(0 if one_row else 1))
        rows.type, rows.shape = value.type, ir.Shape([1, tokens, *rest] if one_row else [tokens, 1, *rest])
        return rows
    if is_pool(tensor):
        states = insert.op("Gather", value, slots, axis=0)
        count = slots.shape.dims[0] if slots.shape is not None and not one_row else 1
        states.type, states.shape = value.type, ir.Shape([count, *value.shape.dims[1:]])
        states.meta[POOL] = (value, pools[value])
        return states
    return value


def _packed_output(
    insert: Inserter, tensor: TensorSpec, source: ir.Value | None, slots: ir.Value, value: ir.Value, old: ir.Value
) -> ir.Value:
    """Rows as tokens, or the pool with the rows' new states."""
    if is_pool(tensor):
        places = insert.op("Unsqueeze", insert.op("Cast", slots, to=int(ir.DataType.INT64)), insert.ints(1))
        return insert.op("ScatterND", source, places, value)
    assert old.shape is not None
    sizes = [size if isinstance(size, int) else -1 for size in old.shape.dims[1:]]
    tokens = insert.op("Reshape", value, insert.ints(-1, *sizes))
    tokens.type, tokens.shape = old.type, old.shape
    return tokens
