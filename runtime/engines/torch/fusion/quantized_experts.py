"""Routed experts with weights packed in 4 or 8 bits on a GPU.

A ``TiledExperts`` node is a routed_experts or rounded_experts node with the inputs x, expert_ids, expert_weights, tiles
and factors of the up and of the down projections, the scales of rounded_experts, and the experts' biases where they
have any; the rows of all experts form one matrix each.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.quantized import common_form, form_attributes, tiles_of
from hybridge.runtime.engines.torch.graph import clean_graph, fuse, producer
from hybridge.trt_plugins.catalog import DOMAIN as OPERATORS
from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS

TILED_EXPERTS = "TiledExperts"


def tile_experts(graph: ir.Graph) -> None:
    """Let nodes of experts over quantised weights read tiles of them."""
    for node in list(graph):
        if node.domain == OPERATORS and node.op_type in ("routed_experts", "rounded_experts"):
            _tile(graph, node)
    clean_graph(graph)


def _tile(graph: ir.Graph, node: ir.Node) -> None:
    x, ids, weights, up, down, *rest = node.inputs
    matrices = [_matrix(value) for value in (up, down)]
    forms = [None if matrix is None else common_form(matrix) for matrix in matrices]
    if x is None or any(form is None or x.dtype not in (None, form.dtype.onnx) for form in forms):
        return
    experts, hidden, intermediate = (int(size) for size in down.shape)  # type: ignore[union-attr,arg-type]
    if hidden % TILE_ROWS or intermediate % TILE_ROWS:
        return  # an expert would begin inside a tile
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes |= {"experts": experts, "hidden": hidden, "intermediate": intermediate}
    tiles: list[ir.Value] = []
    for matrix, form, prefix in zip(matrices, forms, ("up_", "down_"), strict=True):
        assert matrix is not None and form is not None
        tiles += tiles_of(graph, node, matrix, form)
        attributes |= form_attributes(form, prefix)
    fuse([node.outputs[0]], TILED_EXPERTS, [x, ids, weights, *tiles, *rest], attributes)


def _matrix(value: ir.Value | None) -> ir.Value | None:
    """The matrix [experts * rows, columns] that the weights of all experts are a view of."""
    reshape = producer(value, "Reshape")
    return None if reshape is None else reshape.inputs[0]
