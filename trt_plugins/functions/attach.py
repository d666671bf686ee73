"""Functions added to a model for the operators it uses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.call_check import CheckedCall, TensorType, check_call
from hybridge.trt_plugins.catalog import DENSE_VERSION, DOMAIN, spec_of
from hybridge.trt_plugins.functions.catalog import function_for, specialised_attributes
from hybridge.trt_plugins.functions.nodes import OPSET
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.specs.packed import has_rows
from hybridge.trt_plugins.value_types import (
    domain_version,
    node_arguments,
    node_attributes,
    operator_nodes,
    value_types,
)


def attach_functions(model: onnx.ModelProto) -> None:
    """Add, in place, one function for each operator of the domain that ``model`` uses, replacing older ones.

    The model imports opset 24 of the standard domain; the import of the operators' domain is added. Types of the
    nodes' inputs come from value_info or shape inference. An absent optional input becomes an initializer, or no
    input of the function, because TensorRT's parser refuses a function call that lacks an argument.
    Raises UnsupportedError when a node disagrees with its declaration, or when two nodes of one operator would need
    different bodies: ONNX's overloads could tell them apart, but TensorRT's parser does not know overloads.
    """
    _check_opset(model)
    _import_domain(model)
    types, version = value_types(model), domain_version(model)
    signatures: dict[str, Signature] = {}
    owners: dict[str, str] = {}
    for node in operator_nodes(model):
        _fill_absent(model.graph, node, types, version)
        signature = signature_from_node(node, types, version)
        first = signatures.setdefault(node.op_type, signature)
        owners.setdefault(node.op_type, node.name)
        if first != signature:
            raise _conflict(node.op_type, (owners[node.op_type], first), (node.name, signature))
    remaining = [function for function in model.functions if function.domain != DOMAIN]
    del model.functions[:]
    model.functions.extend([*remaining, *(function_for(signature) for signature in signatures.values())])


def signature_from_node(
    node: onnx.NodeProto, types: Mapping[str, TensorType], version: int = DENSE_VERSION
) -> Signature:
    """The parameters of the body of ``node``'s function; UnsupportedError when it disagrees with its declaration.

    ``version`` of the domain is the one that the model imports.
    """
    spec = spec_of(node.op_type, version)
    arguments = node_arguments(node, types)
    call = check_call(spec, arguments, node_attributes(node))
    given = (*arguments, *[None] * (len(spec.inputs) - len(arguments)))
    if missing := [t.name for t, found in zip(spec.inputs, given, strict=True) if found is None and not t.selects]:
        raise UnsupportedError(f"node {node.name}: expected the input {missing[0]}, found none; fill in absent ones")
    present = tuple(None if argument is None else argument.dtype for argument in given)
    kernel = _static(node, call, "kernel") if "kernel" in call.dims else 0
    has_time = call.has_time or has_rows(spec)
    attributes = specialised_attributes(spec, call.attributes)
    return Signature(spec.name, has_time, present, tuple(attributes.items()), kernel, version)


def _fill_absent(graph: onnx.GraphProto, node: onnx.NodeProto, types: dict[str, TensorType], version: int) -> None:
    """Give every absent optional input of ``node`` what it equals; nodes that agree in type and size share it."""
    spec = spec_of(node.op_type, version)
    call = check_call(spec, node_arguments(node, types), node_attributes(node))
    node.input.extend([""] * (len(spec.inputs) - len(node.input)))
    for index, tensor in enumerate(spec.inputs):
        if not node.input[index] and not tensor.selects:
            dtype = tensor.dtype if isinstance(tensor.dtype, DType) else call.types[tensor.dtype]
            shape = [d if isinstance(d, int) else _static(node, call, d) for d in tensor.dims_for(call.has_time)]
            value = "zeros" if tensor.absent == 0.0 else f"{tensor.absent}s"
            name = f"{DOMAIN}.{value}.{dtype.value}.{'x'.join(str(size) for size in shape)}"
            if name not in types:
                array = np.full(shape, tensor.absent, dtype.numpy)
                graph.initializer.append(numpy_helper.from_array(array, name))
                types[name] = TensorType(dtype, tuple(shape))
            node.input[index] = name
    while not node.input[-1]:
        node.input.pop()


def _static(node: onnx.NodeProto, call: CheckedCall, dim: str) -> int:
    size = call.dims[dim]
    if size is None:
        raise UnsupportedError(f"node {node.name}: expected a constant {dim}, found a symbolic size; fix that axis")
    return size


def _check_opset(model: onnx.ModelProto) -> None:
    found = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), None)
    if found != OPSET:
        raise UnsupportedError(f"expected a model of ONNX opset {OPSET}, found {found}; export with opset {OPSET}")


def _import_domain(model: onnx.ModelProto) -> None:
    used = {node.op_type for node in operator_nodes(model)}
    if used and all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DENSE_VERSION))


def _conflict(op: str, first: tuple[str, Signature], second: tuple[str, Signature]) -> UnsupportedError:
    names = [field for field in Signature.__dataclass_fields__ if getattr(first[1], field) != getattr(second[1], field)]
    return UnsupportedError(
        f"expected one body for all nodes of {op}, found different {' and '.join(names)} in {first[0]} and "
        f"{second[0]}; give all layers the same types, attributes and convolution width"
    )
