"""Products by the operator Linear, which reads matrices of 4, 8 and 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight
from hybridge.runtime.engines.onnxruntime.linear_form import FEWEST_FLOATS, NARROW, TYPES, input_block, is_stored_e4m3
from hybridge.runtime.engines.onnxruntime.linear_tiles import TILE_ROWS, columns_per_scale, scale_dtype, tiles_shape
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import (
    LINEAR,
    LINEAR_BYTES,
    LINEAR_FACTORS,
    LINEAR_SCALES,
    LINEAR_ZEROS,
    QuantizedMatrix,
    StoredTensor,
    stored_tensor,
)

OPERATOR = "Linear"


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
) -> tuple[list[ir.Value | None], Mapping[str, int]] | None:
    """Linear's inputs after the first and its attributes; None where it does not read ``weight``, or has no library."""
    matrix, floats = quantized_matrix(weight), _stored_floats(weight)
    is_e4m3 = matrix is not None and is_stored_e4m3(matrix)
    block = None if matrix is None else input_block(matrix)
    if (block is None and floats is None and not is_e4m3) or cpu_library().path is None:
        return None
    name, attributes = str(weight.name), {"scale_type": TYPES[DType.FLOAT32], "group": 0, "block": 0, "exact": 1}
    if floats is not None:
        attributes |= {"rows": floats.shape[0], "type": TYPES[floats.dtype]}
        return [_bytes(graph, name, floats)], attributes
    assert matrix is not None
    rows, group = matrix.shape[0], columns_per_scale(matrix)
    attributes |= {"rows": rows, "type": TYPES[matrix.values.dtype], "group": group}
    if is_e4m3:
        scales = _parameters(graph, name, matrix, LINEAR_SCALES, (rows, matrix.shape[1] // group))
        return [_bytes(graph, name, matrix.values), scales], attributes
    assert block is not None
    attributes |= {"scale_type": TYPES[scale_dtype(matrix)], "block": block, "exact": int(exact)}
    form, shape = WeightForm((matrix,), LINEAR), tiles_shape(matrix)
    inputs: list[ir.Value | None] = [formed_initializer(graph, f"{name}.{LINEAR}", form, shape, ir.DataType.UINT8)]
    if matrix.global_scale is not None:
        inputs.append(_parameters(graph, name, matrix, LINEAR_FACTORS, (rows, 1)))
    if matrix.zero_points is not None:
        size = matrix.shape[1] // group * TILE_ROWS
        zeros = _parameters(graph, name, matrix, LINEAR_ZEROS, (shape[0], size))
        inputs += [*([None] if len(inputs) == 1 else []), zeros]
    return inputs, attributes


def _parameters(graph: ir.Graph, name: str, matrix: QuantizedMatrix, form: str, shape: tuple[int, int]) -> ir.Value:
    """Scales of ``matrix`` in a float32 initializer of ``shape``."""
    return formed_initializer(graph, f"{name}.{form}", WeightForm((matrix,), form), shape, ir.DataType.FLOAT)


def _stored_floats(weight: ir.Value) -> StoredTensor | None:
    """The 16-bit matrix that ``weight`` is in the artifact's files; None for any other."""
    tensor = weight.const_value
    if not isinstance(tensor, ir.ExternalTensor) or quantized_matrix(weight) or joined_weight(weight):
        return None
    stored = stored_tensor(tensor)
    is_narrow = stored.dtype in NARROW
    return stored if is_narrow and len(stored.shape) == 2 and prod(stored.shape) >= FEWEST_FLOATS else None


def _bytes(graph: ir.Graph, name: str, tensor: StoredTensor) -> ir.Value:
    """The bytes of a matrix: [rows, n]."""
    shape = (tensor.shape[0], tensor.dtype.nbytes(tensor.shape[1]))
    stored = WeightForm((replace(tensor, dtype=DType.UINT8, shape=shape),), LINEAR_BYTES)
    return formed_initializer(graph, f"{name}.{LINEAR_BYTES}", stored, shape, ir.DataType.UINT8)
