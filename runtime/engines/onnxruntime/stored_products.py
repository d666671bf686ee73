"""Products by the operator Linear, which reads 4-bit, 8-bit and 16-bit matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight
from hybridge.runtime.engines.onnxruntime.linear_form import FEWEST_FLOATS, NARROW, TYPES, input_block
from hybridge.runtime.engines.onnxruntime.linear_tiles import columns_per_scale, tiles_shape
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import LINEAR, LINEAR_FLOATS, StoredTensor, stored_tensor

OPERATOR = "Linear"


def use_stored_products(model: ir.Model, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a matrix that Linear reads; exact: do not round x.

    Nothing is replaced where the library cannot be compiled.
    """
    nodes = [node for node in model.graph if node.op_type == "FusedMatMul" and node.attributes.get_int("transB", False)]
    for node in nodes:
        weight = node.inputs[1]
        found = None if weight is None else _input_and_attributes(model.graph, weight, exact)
        if weight is None or found is None:
            continue
        read, attributes = found
        product = Inserter(model.graph, node).op(
            OPERATOR, node.inputs[0], read, domain=CPU_DOMAIN, instructions=0, **attributes
        )
        replace_node(node, [product])
        remove_unused(model.graph, weight)


def _input_and_attributes(graph: ir.Graph, weight: ir.Value, exact: bool) -> tuple[ir.Value, Mapping[str, int]] | None:
    """Linear's second input and its attributes for ``weight``; None where it does not support it, or has no library."""
    matrix, floats = quantized_matrix(weight), _stored_floats(weight)
    block = None if matrix is None else input_block(matrix)
    if (block is None and floats is None) or cpu_library().path is None:
        return None
    if floats is not None:
        attributes = {"type": TYPES[floats.dtype], "scale_type": TYPES[DType.FLOAT32], "group": 0, "block": 0}
        return _floats(graph, str(weight.name), floats), {"rows": floats.shape[0], **attributes, "exact": 1}
    assert matrix is not None and block is not None
    types = {"type": TYPES[matrix.values.dtype], "scale_type": TYPES[matrix.scales.dtype]}
    sizes = {"rows": matrix.shape[0], "group": columns_per_scale(matrix), "block": block}
    name = f"{weight.name}.{LINEAR}"
    tiles = formed_initializer(graph, name, WeightForm(matrix, LINEAR), tiles_shape(matrix), ir.DataType.UINT8)
    return tiles, {**sizes, **types, "exact": int(exact)}


def _stored_floats(weight: ir.Value) -> StoredTensor | None:
    """The 16-bit matrix that ``weight`` is in the artifact's files; None for any other."""
    tensor = weight.const_value
    if not isinstance(tensor, ir.ExternalTensor) or quantized_matrix(weight) or joined_weight(weight):
        return None
    stored = stored_tensor(tensor)
    is_narrow = stored.dtype in NARROW
    return stored if is_narrow and len(stored.shape) == 2 and prod(stored.shape) >= FEWEST_FLOATS else None


def _floats(graph: ir.Graph, name: str, floats: StoredTensor) -> ir.Value:
    """The bytes of a matrix: [rows, n]."""
    shape = (floats.shape[0], floats.dtype.nbytes(floats.shape[1]))
    stored = WeightForm(replace(floats, dtype=DType.UINT8, shape=shape), LINEAR_FLOATS)
    return formed_initializer(graph, f"{name}.{LINEAR_FLOATS}", stored, shape, ir.DataType.UINT8)
