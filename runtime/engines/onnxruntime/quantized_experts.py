"""Routed experts with 4-bit and 8-bit weights run by ONNX Runtime's QMoE, which reads the packed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, op_attributes, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import JoinedWeight, add_joined, joined_weight
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.quantized_products import (
    FLOAT32_PRODUCTS,
    INT8_PRODUCTS,
    kernel_block,
    row_widths,
)
from hybridge.runtime.engines.onnxruntime.quantized_weights import remove_unused
from hybridge.runtime.engines.onnxruntime.routed_experts import biases_of, has_kernel_form, weighted_experts
from hybridge.runtime.engines.onnxruntime.session_graph import (
    BLOCK_SCALES,
    BLOCK_ZEROS,
    BLOCKS,
    QuantizedMatrix,
    kernel_bits,
)
from hybridge.trt_plugins.catalog import DOMAIN

_TYPES: Mapping[str, ir.DataType] = MappingProxyType(
    {BLOCKS: ir.DataType.UINT8, BLOCK_SCALES: ir.DataType.FLOAT, BLOCK_ZEROS: ir.DataType.UINT8}
)


def use_quantized_experts(model: ir.Model, kernels: Kernels, exact: bool) -> None:
    """Replace routed_experts over quantised matrices by QMoE where it can read them; ``exact``: do not round inputs.

    Otherwise rounded_experts too: QMoE rounds inputs to 8 bits, in blocks.
    """
    graph, operators = model.graph, ("routed_experts",) if exact else ("routed_experts", "rounded_experts")
    for node in list(graph):
        if node.domain != DOMAIN or node.op_type not in operators or not has_kernel_form(node):
            continue
        up, down = node.inputs[3:5]
        first, second = _matrix(up, exact), _matrix(down, exact)
        if not kernels.quantized_experts or first is None or second is None or up is None or down is None:
            continue
        block, bits = kernel_block(first, exact), kernel_bits(first)
        if (block, bits) != (kernel_block(second, exact), kernel_bits(second)):
            continue
        is_gated = bool(op_attributes(node)["gated"])
        ups, downs = _inputs(graph, up, first, is_gated, exact), _inputs(graph, down, second, False, exact)
        insert = Inserter(graph, node)
        up_bias, down_bias = biases_of(insert, node)
        matrices = [*ups[:2], up_bias, *downs[:2], down_bias]
        if ups[2] is not None or downs[2] is not None:
            matrices += [None, None, None, ups[2], downs[2]]
        level = FLOAT32_PRODUCTS if exact else INT8_PRODUCTS
        options = {"expert_weight_bits": bits, "block_size": block, "accuracy_level": level}
        replace_node(node, [weighted_experts(insert, node, "QMoE", matrices, options)])
        for value in (up, down):
            remove_unused(graph, value)


def _matrix(value: ir.Value | None, exact: bool) -> QuantizedMatrix | None:
    """The first expert's matrix if all are quantised alike, in a way that the kernel supports; else None."""
    joined = None if value is None else joined_weight(value)
    if joined is None:
        return None
    found = [part for part in joined.parts if isinstance(part, QuantizedMatrix)]
    ways = {(kernel_block(part, exact), part.values.dtype, part.zero_points is None) for part in found}
    if len(found) != len(joined.parts) or len(ways) != 1:
        return None
    ((block, _, _),) = ways
    return None if block is None or joined.shape[2] % block else found[0]


def _inputs(
    graph: ir.Graph, value: ir.Value, matrix: QuantizedMatrix, interleaved: bool, exact: bool
) -> list[ir.Value | None]:
    """Numbers, scales and zero points (None without): [experts, rows, ...] each."""
    joined, block = joined_weight(value), kernel_block(matrix, exact)
    assert joined is not None and block is not None
    experts, rows, columns = joined.shape
    widths = row_widths(columns, kernel_bits(matrix), block)
    found: list[ir.Value | None] = []
    for form, dtype in _TYPES.items():
        made = JoinedWeight(joined.parts, (experts, rows, widths[form]), interleaved, form, block)
        has_form = form != BLOCK_ZEROS or matrix.zero_points is not None
        found.append(add_joined(graph, f"{value.name}.{form}", made, dtype) if has_form else None)
    return found
