"""Products with matrices of 4 and 8 bits in MatMulNBits, which reads the packed numbers."""

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

# Sizes of blocks that the kernel knows are powers of two from this one on. By bits of a number the largest ones that
# are used: the inputs are rounded by blocks too, which must not add much to the error of the weights.
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK: Mapping[int, int] = MappingProxyType({4: 128, 8: 32})
# Of a matrix with one scale a row, which is repeated.
_BLOCK_OF_ROWS = 32
# Accuracy levels of the kernel: float32 products, or int8 ones of inputs that are rounded by blocks.
FLOAT32_PRODUCTS, INT8_PRODUCTS = 1, 4


def use_quantized_products(model: ir.Model, kernels: Kernels, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a quantised matrix by MatMulNBits where that can read it.

    exact: x is not rounded. The kernel for 8 bits needs rounded inputs, so those matrices stay as they are then.
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
    """The kernel's block; None where it cannot read the matrix."""
    bits = KERNEL_BITS.get(matrix.values.dtype)
    if bits is None or (exact and bits == 8):
        return None
    if len(matrix.scales.shape) < 2:
        return _BLOCK_OF_ROWS
    block = gcd(matrix.shape[1] // matrix.scales.shape[1], _LARGEST_BLOCK[bits])
    return block if block >= _SMALLEST_BLOCK else None


def row_widths(columns: int, bits: int, block: int) -> Mapping[str, int]:
    """How many bytes, scales or bytes of zero points a row of a matrix has for the kernel."""
    count = -(-columns // block)
    return {BLOCKS: count * block * bits // 8, BLOCK_SCALES: count, BLOCK_ZEROS: -(-count * bits // 8)}


def _input(
    graph: ir.Graph, weight: ir.Value, matrix: QuantizedMatrix, block: int, form: str, kernels: Kernels
) -> ir.Value:
    """The initializer that is ``form`` of ``matrix``, made where it is not there yet."""
    rows, columns = matrix.shape
    width = row_widths(columns, kernel_bits(matrix), block)[form]
    shape = (rows, -(-columns // block), width // -(-columns // block)) if form == BLOCKS else (rows * width,)
    dtype = ir.DataType.FLOAT if form == BLOCK_SCALES else ir.DataType.UINT8
    made = WeightForm(matrix, form, block, form == BLOCKS and kernels.packs_blocks)
    return formed_initializer(graph, f"{weight.name}.{form}", made, shape, dtype)
