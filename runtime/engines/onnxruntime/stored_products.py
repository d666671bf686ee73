"""Products with 4-bit and 8-bit matrices by our operator Linear, which reads them where the file is mapped."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.linear_form import TYPES, input_block
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import LINEAR, StoredTensor

CPU_DOMAIN, OPERATOR = "hybridge.cpu", "Linear"


def use_stored_products(model: ir.Model, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a matrix that Linear reads; exact: do not round x.

    Nothing is replaced where the library cannot be compiled.
    """
    nodes = [node for node in model.graph if node.op_type == "FusedMatMul" and node.attributes.get_int("transB", False)]
    for node in nodes:
        weight = node.inputs[1]
        matrix = quantized_matrix(weight)
        block = None if matrix is None else input_block(matrix)
        if weight is None or matrix is None or block is None:
            continue
        if cpu_library().path is None:
            return
        product = Inserter(model.graph, node).op(
            OPERATOR,
            node.inputs[0],
            *(_stored_bytes(model.graph, weight, tensor) for tensor in (matrix.values, matrix.scales)),
            domain=CPU_DOMAIN,
            type=TYPES[matrix.values.dtype],
            scale_type=TYPES[matrix.scales.dtype],
            block=block,
            exact=int(exact),
            instructions=0,
        )
        replace_node(node, [product])
        remove_unused(model.graph, weight)


def _stored_bytes(graph: ir.Graph, weight: ir.Value, tensor: StoredTensor) -> ir.Value:
    """The bytes of ``tensor``: [rows, n] of a matrix, else [n]."""
    if tensor.dtype in (DType.INT4, DType.INT8):
        shape: tuple[int, ...] = (tensor.shape[0], tensor.dtype.nbytes(tensor.shape[1]))
        name = "numbers"
    else:
        shape, name = (tensor.dtype.nbytes(prod(tensor.shape)),), "scales"
    stored = WeightForm(replace(tensor, dtype=DType.UINT8, shape=shape), LINEAR)
    return formed_initializer(graph, f"{weight.name}.{name}", stored, shape, ir.DataType.UINT8)
