"""Products with 4-bit and 8-bit matrices by MatMulNBits, which reads the packed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import (
    BLOCK_SCALES,
    BLOCK_ZEROS,
    BLOCKS,
    KERNEL_BITS,
    QuantizedMatrix,
    kernel_bits,
)

# Block sizes of the kernel are powers of two from this one on.
# The largest block used, by bits per number: inputs are rounded per block too, which must add little error.
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK: Mapping[int, int] = MappingProxyType({4: 128, 8: 32})
# Block size for a matrix with one scale per row, which is repeated for each block.
_BLOCK_OF_ROWS = 32
# Accuracy levels of the kernel: float32 products, or int8 products with inputs rounded per block.
FLOAT32_PRODUCTS, INT8_PRODUCTS = 1, 4


def use_quantized_products(model: ir.Model, kernels: Kernels, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a quantised matrix by MatMulNBits where it can read the matrix.

    exact: do not round x. The 8-bit kernel needs rounded inputs, so 8-bit matrices are then left as they are.
    """
    for node in list(model.graph):
        if node.op_type != "FusedMatMul" or not node.attributes.get_int("transB", 0):
            continue
        weight = node.inputs[1]
        matrix = quantized_matrix(weight)
        block = None if matrix is None else kernel_block(matrix, exact)
        if weight is None or matrix is None or block is None:
            continue
        rows, columns = matrix.shape
        forms = (BLOCKS, BLOCK_SCALES) if matrix.zero_points is None else (BLOCKS, BLOCK_SCALES, BLOCK_ZEROS)
        inputs = [_input(model.graph, weight, matrix, block, form, kernels) for form in forms]
        product = Inserter(model.graph, node).microsoft(
            "MatMulNBits",
            node.inputs[0],
            *inputs,
            K=columns,
            N=rows,
            bits=kernel_bits(matrix),
            block_size=block,
            accuracy_level=FLOAT32_PRODUCTS if exact else INT8_PRODUCTS,
        )
        replace_node(node, [product])
        remove_unused(model.graph, weight)


def kernel_block(matrix: QuantizedMatrix, exact: bool) -> int | None:
    """The kernel's block size for ``matrix``; None where it cannot read it."""
    bits = KERNEL_BITS.get(matrix.values.dtype)
    if bits is None or (exact and bits == 8):
        return None
    if len(matrix.scales.shape) < 2:
        return _BLOCK_OF_ROWS
    block = gcd(matrix.shape[1] // matrix.scales.shape[1], _LARGEST_BLOCK[bits])
    return block if block >= _SMALLEST_BLOCK else None


def row_widths(columns: int, bits: int, block: int) -> Mapping[str, int]:
    """By form: bytes of numbers, number of scales and bytes of zero points of a matrix row for the kernel."""
    count = -(-columns // block)
    return {BLOCKS: count * block * bits // 8, BLOCK_SCALES: count, BLOCK_ZEROS: -(-count * bits // 8)}


def _input(
    graph: ir.Graph, weight: ir.Value, matrix: QuantizedMatrix, block: int, form: str, kernels: Kernels
) -> ir.Value:
    """The initializer with ``form`` of ``matrix``; created if it does not exist."""
    rows, columns = matrix.shape
    width = row_widths(columns, kernel_bits(matrix), block)[form]
    shape = (rows, -(-columns // block), width // -(-columns // block)) if form == BLOCKS else (rows * width,)
    dtype = ir.DataType.FLOAT if form == BLOCK_SCALES else ir.DataType.UINT8
    made = WeightForm((matrix,), form, block, form == BLOCKS and kernels.packs_blocks)
    return formed_initializer(graph, f"{weight.name}.{form}", made, shape, dtype)
