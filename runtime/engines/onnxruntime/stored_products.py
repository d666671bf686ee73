"""Products by the operator Linear, which reads 4-bit, 8-bit and 16-bit matrices from the mapped file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight
from hybridge.runtime.engines.onnxruntime.linear_form import TYPES, input_block
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import LINEAR, LINEAR_FLOATS, StoredTensor, stored_tensor

CPU_DOMAIN, OPERATOR = "hybridge.cpu", "Linear"
# Smaller matrices of 16 bits are widened when they are loaded: their products are as fast, and they need little memory.
_FEWEST_FLOATS = 1 << 19


def use_stored_products(model: ir.Model, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a matrix that Linear reads; exact: do not round x.

    Nothing is replaced where the library cannot be compiled.
    """
    nodes = [node for node in model.graph if node.op_type == "FusedMatMul" and node.attributes.get_int("transB", False)]
    for node in nodes:
        weight = node.inputs[1]
        found = None if weight is None else _inputs_and_attributes(model.graph, weight, exact)
        if weight is None or found is None:
            continue
        inputs, attributes = found
        product = Inserter(model.graph, node).op(
            OPERATOR, node.inputs[0], *inputs, domain=CPU_DOMAIN, instructions=0, **attributes
        )
        replace_node(node, [product])
        remove_unused(model.graph, weight)


def _inputs_and_attributes(
    graph: ir.Graph, weight: ir.Value, exact: bool
) -> tuple[list[ir.Value], Mapping[str, int]] | None:
    """Linear's inputs and attributes for ``weight``; None where it does not support it, or has no library."""
    matrix, floats = quantized_matrix(weight), _stored_floats(weight)
    block = None if matrix is None else input_block(matrix)
    if (block is None and floats is None) or cpu_library().path is None:
        return None
    if floats is not None:
        attributes = {"type": TYPES[floats.dtype], "scale_type": TYPES[DType.FLOAT32], "block": 0, "exact": 1}
        return [_stored_bytes(graph, f"{weight.name}.{LINEAR_FLOATS}", floats, LINEAR_FLOATS, 2)], attributes
    assert matrix is not None and block is not None
    types = {"type": TYPES[matrix.values.dtype], "scale_type": TYPES[matrix.scales.dtype]}
    inputs = [
        _stored_bytes(graph, f"{weight.name}.numbers", matrix.values, LINEAR, 2),
        _stored_bytes(graph, f"{weight.name}.scales", matrix.scales, LINEAR, 1),
    ]
    return inputs, {**types, "block": block, "exact": int(exact)}


def _stored_floats(weight: ir.Value) -> StoredTensor | None:
    """The 16-bit matrix that ``weight`` is in the artifact's files; None for any other."""
    tensor = weight.const_value
    if not isinstance(tensor, ir.ExternalTensor) or quantized_matrix(weight) or joined_weight(weight):
        return None
    stored = stored_tensor(tensor)
    is_narrow = stored.dtype in (DType.FLOAT16, DType.BFLOAT16)
    return stored if is_narrow and len(stored.shape) == 2 and prod(stored.shape) >= _FEWEST_FLOATS else None


def _stored_bytes(graph: ir.Graph, name: str, tensor: StoredTensor, form: str, rank: int) -> ir.Value:
    """The bytes of ``tensor``: [rows, n] with ``rank`` 2, else [n]."""
    if rank == 2:
        shape: tuple[int, ...] = (tensor.shape[0], tensor.dtype.nbytes(tensor.shape[1]))
    else:
        shape = (tensor.dtype.nbytes(prod(tensor.shape)),)
    stored = WeightForm(replace(tensor, dtype=DType.UINT8, shape=shape), form)
    return formed_initializer(graph, name, stored, shape, ir.DataType.UINT8)
