"""Products with matrices of 4-bit integers in MatMulNBits, which reads the packed numbers."""

from __future__ import annotations

from math import gcd

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.quantized_weights import quantized_matrix
from hybridge.runtime.engines.onnxruntime.session_graph import BLOCK_SCALES, BLOCK_ZEROS, BLOCKS, QuantizedMatrix

# Sizes of blocks that the kernel knows: powers of two between these.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 256
# Of a matrix with one scale a row, which is repeated.
_BLOCK_OF_ROWS = 32
# Products of float32 numbers: the kernel's faster ones round the input to 8 bits.
_FLOAT32 = 1
_META = "engine.block_input"


def use_quantized_products(model: ir.Model) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a quantised matrix by MatMulNBits where that can read it."""
    for node in list(model.graph):
        if node.op_type != "FusedMatMul" or not node.attributes.get_int("transB", 0):
            continue
        matrix = quantized_matrix(node.inputs[1])
        block = None if matrix is None else _kernel_block(matrix)
        if matrix is None or block is None:
            continue
        rows, columns = matrix.shape
        weight = node.inputs[1]
        forms = (BLOCKS, BLOCK_SCALES) if matrix.zero_points is None else (BLOCKS, BLOCK_SCALES, BLOCK_ZEROS)
        inputs = [_input(model.graph, weight, matrix, block, form) for form in forms]
        product = Inserter(model.graph, node).microsoft(
            "MatMulNBits",
            node.inputs[0],
            *inputs,
            K=columns,
            N=rows,
            bits=4,
            block_size=block,
            accuracy_level=_FLOAT32,
        )
        replace_node(node, [product])
        assert weight is not None
        if not weight.uses():
            del model.graph.initializers[str(weight.name)]


def block_input(value: ir.Value) -> tuple[QuantizedMatrix, str, int] | None:
    """The matrix, the form and the block of an input of MatMulNBits; None for another initializer."""
    return value.meta.get(_META)


def _kernel_block(matrix: QuantizedMatrix) -> int | None:
    """The kernel's block; None where it cannot read the matrix."""
    if matrix.values.dtype is not DType.INT4 or matrix.global_scale is not None:
        return None
    if len(matrix.scales.shape) < 2:
        return _BLOCK_OF_ROWS
    block = gcd(matrix.shape[1] // matrix.scales.shape[1], _LARGEST_BLOCK)
    return block if block >= _SMALLEST_BLOCK else None


def _input(graph: ir.Graph, weight: ir.Value | None, matrix: QuantizedMatrix, block: int, form: str) -> ir.Value:
    """The initializer that is ``form`` of ``matrix``, made where it is not there yet."""
    assert weight is not None
    name = f"{weight.name}.{form}"
    if name in graph.initializers:
        return graph.initializers[name]
    rows, columns = matrix.shape
    count = -(-columns // block)
    shape, dtype = {
        BLOCKS: ((rows, count, block // 2), ir.DataType.UINT8),
        BLOCK_SCALES: ((rows * count,), ir.DataType.FLOAT),
        BLOCK_ZEROS: ((rows * (-(-count // 2)),), ir.DataType.UINT8),
    }[form]
    placeholder = ir.ExternalTensor(matrix.location, None, None, dtype, shape=ir.Shape(shape), name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=placeholder)
    value.meta[_META] = (matrix, form, block)
    graph.register_initializer(value)
    return value
