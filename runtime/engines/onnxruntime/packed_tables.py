"""Keep lookup tables (embeddings) as the artifact stores them: only the rows of a step become float32."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.dequantize import numbers_of_bytes
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight
from hybridge.runtime.engines.onnxruntime.quantized_weights import (
    WeightForm,
    formed_initializer,
    quantized_matrix,
    remove_unused,
)
from hybridge.runtime.engines.onnxruntime.session_graph import (
    ROW_SCALES,
    ROW_ZEROS,
    STORED,
    QuantizedMatrix,
    StoredTensor,
    stored_tensor,
)

# Types that Cast reads; for others each byte is looked up in a table of its numbers.
_CAST = (DType.INT8, DType.FLOAT16, DType.BFLOAT16)


def use_packed_tables(model: ir.Model) -> None:
    """Make every Gather of rows of a weight of at most 16 bits read the stored bytes and widen only its rows.

    A 16-bit table that other nodes read is in memory as float32 anyway and does not change.
    """
    graph = model.graph
    for node in list(graph):
        axis = node.attributes.get_int("axis", 0)
        if node.op_type != "Gather" or node.domain or axis != 0:
            continue
        table = node.inputs[0]
        matrix = quantized_matrix(table)
        if table is None or not (matrix or _is_narrow(table)):
            continue
        insert = Inserter(graph, node)
        rows = _quantized_rows(insert, node, table, matrix) if matrix else _narrow_rows(insert, node, table)
        found, name = node.outputs[0], node.outputs[0].name
        replace_node(node, [rows])
        found.name, rows.name = None, name  # an exposed value is found by its name
        remove_unused(graph, table)


def _is_narrow(table: ir.Value) -> bool:
    """Whether ``table`` is a stored 16-bit matrix that only Gather nodes read."""
    tensor = table.const_value
    if not isinstance(tensor, ir.ExternalTensor) or joined_weight(table) is not None or len(tensor.shape) != 2:
        return False
    return stored_tensor(tensor).dtype in _CAST and all(
        user.op_type == "Gather" and index == 0 for user, index in table.uses()
    )


def _narrow_rows(insert: Inserter, node: ir.Node, table: ir.Value) -> ir.Value:
    assert isinstance(table.const_value, ir.ExternalTensor)
    return _stored_rows(insert, node, table, stored_tensor(table.const_value))


def _quantized_rows(insert: Inserter, node: ir.Node, table: ir.Value, matrix: QuantizedMatrix) -> ir.Value:
    """(numbers - zero points) * scales of the rows: float32 [..., columns]."""
    graph, indices, (count, columns) = insert.graph, node.inputs[1], matrix.shape
    assert indices is not None and indices.shape is not None
    lead, scales = [0] * len(indices.shape), matrix.scales.shape
    groups = scales[1] if len(scales) == 2 else 1
    are_final = len(scales) == 2 and matrix.scales.dtype in _CAST and matrix.global_scale is None

    def parameters(form: str) -> ir.Value:
        """Scales or zero points [..., groups, 1] of the rows; [1, 1] for a matrix with one scale."""
        if form == ROW_SCALES and are_final:
            rows = _cast_rows(insert, node, f"{table.name}.{form}", matrix.scales)
            return insert.op("Unsqueeze", rows, insert.ints(-1))
        shape, name = (count, groups) if scales else (1, 1), f"{table.name}.{form}"
        stored = formed_initializer(graph, name, WeightForm((matrix,), form), shape, ir.DataType.FLOAT)
        return insert.op("Unsqueeze", insert.op("Gather", stored, indices), insert.ints(-1)) if scales else stored

    numbers = _stored_rows(insert, node, table, matrix.values)
    rows = insert.op("Reshape", numbers, insert.ints(*lead, groups, columns // groups))
    if matrix.zero_points is not None:
        rows = insert.op("Sub", rows, parameters(ROW_ZEROS))
    return insert.op("Reshape", insert.op("Mul", rows, parameters(ROW_SCALES)), insert.ints(*lead, columns))


def _stored_rows(insert: Inserter, node: ir.Node, table: ir.Value, tensor: StoredTensor) -> ir.Value:
    """The numbers of the rows that ``node`` looks up, as float32: [..., columns], or [..., columns / 2, 2]."""
    (rows, columns), name = tensor.shape, f"{table.name}.{STORED}"
    if tensor.dtype in _CAST:
        return _cast_rows(insert, node, name, tensor)
    stored = replace(tensor, dtype=DType.UINT8, shape=(rows, tensor.dtype.nbytes(columns)))
    bytes_ = _cast_rows(insert, node, name, stored, ir.DataType.INT32)
    return insert.op("Gather", insert.constant(numbers_of_bytes(tensor.dtype)), bytes_)


def _cast_rows(
    insert: Inserter, node: ir.Node, name: str, stored: StoredTensor, dtype: ir.DataType = ir.DataType.FLOAT
) -> ir.Value:
    """The rows of ``stored`` that ``node`` looks up, as ``dtype``; ``name``: of the initializer, which stays mapped."""
    form = WeightForm((stored,), STORED)
    value = formed_initializer(insert.graph, name, form, stored.shape, ir.DataType(stored.dtype.onnx))
    return insert.op("Cast", insert.op("Gather", value, node.inputs[1]), to=int(dtype))
