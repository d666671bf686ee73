"""Types and shapes of the values of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.shape_inference

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.call_check import TensorType
from hybridge.trt_plugins.catalog import DENSE_VERSION, DOMAIN
from hybridge.trt_plugins.onnx_schema import register_schemas


def operator_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of the domain ``trt_edgellm`` in the main graph, in order."""
    return [node for node in model.graph.node if node.domain == DOMAIN]


def domain_version(model: onnx.ModelProto) -> int:
    """The version of the domain ``trt_edgellm`` that ``model`` imports; without an import the dense one."""
    return next((opset.version for opset in model.opset_import if opset.domain == DOMAIN), DENSE_VERSION)


def value_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """Name to type and shape, for every value of the main graph that has them.

    Read from initializers, inputs, outputs and value_info; ONNX shape inference runs only when an input of an
    operator of the domain is in none of them. Weights are never read. UnsupportedError when inference fails.
    """
    known = _declared(model.graph)
    needed = {name for node in operator_nodes(model) for name in node.input if name}
    if needed - set(known):
        known = {**_declared(_inferred(model).graph), **known}
    return known


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    register_schemas()
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise UnsupportedError(
            f"expected a graph whose types can be inferred, found an error: {error}; give every value a value_info"
        ) from error


def node_arguments(node: onnx.NodeProto, types: Mapping[str, TensorType]) -> list[TensorType | None]:
    """Types of the node's inputs, None where absent; UnsupportedError naming an input whose type is unknown."""
    for name in node.input:
        if name and name not in types:
            raise UnsupportedError(f"expected a type for value {name}, found none; run shape inference on the graph")
    return [types[name] if name else None for name in node.input]


def node_attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Name to value, strings decoded."""
    values = ((a.name, onnx.helper.get_attribute_value(a)) for a in node.attribute)
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values}


def _declared(graph: onnx.GraphProto) -> dict[str, TensorType]:
    known: dict[str, TensorType] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        tensor = value.type.tensor_type
        if tensor.elem_type and tensor.HasField("shape"):
            shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
            known[value.name] = TensorType(DType.from_onnx(tensor.elem_type), shape)
    for weight in graph.initializer:
        known[weight.name] = TensorType(DType.from_onnx(weight.data_type), tuple(weight.dims))
    return known
