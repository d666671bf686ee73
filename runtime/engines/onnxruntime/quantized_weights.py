"""Quantised weights of an artifact's graph, as initializers that are computed when they are loaded.

The graph applies DequantizeLinear to stored numbers and scales. Later passes see a single initializer instead;
``quantized_products`` replaces it by the inputs of kernels that read the packed numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.session_graph import Part, QuantizedMatrix, StoredTensor, stored_tensor

_META = "engine.quantized_matrix"
_FORM = "engine.weight_form"


def read_quantized_weights(model: ir.Model) -> None:
    """Replace every DequantizeLinear of a stored matrix by an initializer of the same name.

    EngineError: a weight is dequantised in a way that this engine does not support.
    """
    graph = model.graph
    for node in list(graph):
        if node.op_type != "DequantizeLinear" or node.domain or node.graph is None or not _is_matrix(node):
            continue
        result, matrix = node.outputs[0], _matrix(node)
        name, dtype = str(result.name), result.dtype
        assert dtype is not None
        result.name = None
        value = matrix_initializer(graph, name, matrix, dtype)
        ir.convenience.replace_all_uses_with(result, value)
        _remove(graph, node)


def matrix_initializer(graph: ir.Graph, name: str, matrix: QuantizedMatrix, dtype: ir.DataType) -> ir.Value:
    """A new initializer ``name`` of type ``dtype`` that is computed from ``matrix``."""
    value = placeholder(graph, name, matrix.location, matrix.shape, dtype)
    value.meta[_META] = matrix
    return value


def placeholder(graph: ir.Graph, name: str, location: str, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
    """A new initializer ``name`` that the weight store fills."""
    tensor = ir.ExternalTensor(location, None, None, dtype, shape=ir.Shape(shape), name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def quantized_matrix(value: ir.Value | None) -> QuantizedMatrix | None:
    """The matrix that an initializer is computed from; None for any other value."""
    found = None if value is None else value.meta.get(_META)
    return found if isinstance(found, QuantizedMatrix) else None


@dataclass(frozen=True)
class WeightForm:
    """The form of ``parts`` that an initializer holds; the fields are those of GraphWeight."""

    parts: tuple[Part, ...]
    form: str
    block: int = 0
    packed: bool = False


def formed_initializer(
    graph: ir.Graph, name: str, form: WeightForm, shape: tuple[int, ...], dtype: ir.DataType
) -> ir.Value:
    """An initializer ``name`` that the weight store computes; an existing one of that name is returned as it is."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = placeholder(graph, name, form.parts[0].location, shape, dtype)
    value.meta[_FORM] = form
    return value


def weight_form(value: ir.Value) -> WeightForm | None:
    """The form of an initializer made by ``formed_initializer``; None for any other value."""
    found = value.meta.get(_FORM)
    return found if isinstance(found, WeightForm) else None


def remove_unused(graph: ir.Graph, value: ir.Value) -> None:
    """Remove the initializer ``value`` if nothing reads it."""
    if not value.uses():
        del graph.initializers[str(value.name)]


def _is_matrix(node: ir.Node) -> bool:
    """Whether the node dequantises a weight: an initializer that is not the scales of another one."""
    source, result = node.inputs[0], node.outputs[0]
    readers = [user for user, _ in result.uses()]
    while len(readers) == 1 and readers[0].op_type == "Cast":
        readers = [user for user, _ in readers[0].outputs[0].uses()]
    are_scales = any(user.op_type == "DequantizeLinear" for user in readers)
    return source is not None and isinstance(source.const_value, ir.ExternalTensor) and not are_scales


def _matrix(node: ir.Node) -> QuantizedMatrix:
    inputs = [*node.inputs, None]
    values, scales, zeros = _stored(node, inputs[0]), inputs[1], inputs[2]
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    while scales is not None and (producer := scales.producer()) is not None and producer.op_type == "Cast":
        scales = producer.inputs[0]
    whole = None
    producer = None if scales is None else scales.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        scales, whole = producer.inputs[0], _stored(node, producer.inputs[1])
    found = _stored(node, scales)
    rows, columns = values.shape if len(values.shape) == 2 else (0, 0)
    expected = (rows, columns // block) if block else (rows,)
    if not rows or (found.shape and (found.shape != expected or axis != bool(block))) or (block and columns % block):
        raise EngineError(
            f"{node.outputs[0].name}: expected scales {list(expected)} of a matrix, or a single scale, found "
            f"{list(found.shape)}: export the checkpoint again"
        )
    return QuantizedMatrix(values, found, None if zeros is None else _stored(node, zeros), whole)


def _stored(node: ir.Node, value: ir.Value | None) -> StoredTensor:
    tensor = None if value is None else value.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        raise EngineError(
            f"{node.outputs[0].name}: expected weights and scales in the artifact's files, found none: export "
            "the checkpoint again"
        )
    return stored_tensor(tensor)


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    """Remove ``node`` and the values that only it reads."""
    inputs = [value for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    for value in inputs:
        if value.uses():
            continue
        producer = value.producer()
        if producer is not None:
            _remove(graph, producer)
        elif value.is_initializer():
            del graph.initializers[str(value.name)]
