"""Check of every operator node of a model against its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ExportError, UnsupportedError
from hybridge.trt_plugins.call_check import CheckedCall, TensorType, check_call
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.value_types import (
    domain_version,
    node_arguments,
    node_attributes,
    operator_nodes,
    value_types,
)


@dataclass(frozen=True)
class CheckedNode:
    """A node that agrees with its declaration, and what it binds."""

    name: str
    spec: OpSpec
    call: CheckedCall

    @property
    def op(self) -> str:
        return self.spec.name

    def kernel_gaps(self) -> tuple[str, ...]:
        """The parts of the node that the CUDA kernels do not support; empty when they run it."""
        return self.spec.kernel_gaps(self.call.dims)


def check_op_nodes(model: onnx.ModelProto) -> tuple[CheckedNode, ...]:
    """Check inputs, types (A is float32), shapes, attributes and outputs of every node of the domain.

    Returns the nodes in graph order. Raises ExportError naming the first node that disagrees.
    """
    try:
        types = value_types(model)
    except UnsupportedError as error:
        raise ExportError(str(error)) from error
    version = domain_version(model)
    return tuple(_checked(node, version, types) for node in operator_nodes(model))


def _checked(node: onnx.NodeProto, version: int, types: Mapping[str, TensorType]) -> CheckedNode:
    try:
        spec = spec_of(node.op_type, version)
        arguments = node_arguments(node, types)
        call = check_call(spec, arguments, node_attributes(node))
    except UnsupportedError as error:
        raise ExportError(f"node {node.name}: {error}") from error
    if len(node.output) != len(spec.outputs):
        raise ExportError(
            f"node {node.name}: expected {len(spec.outputs)} outputs, found {len(node.output)}; name every output"
        )
    for output, name in zip(spec.outputs, node.output, strict=True):
        expected = output.dtype if isinstance(output.dtype, DType) else call.types[output.dtype]
        if name in types and types[name].dtype is not expected:
            raise ExportError(
                f"node {node.name}: expected output {name} of type {expected.value}, "
                f"found {types[name].dtype.value}; correct its value_info"
            )
    return CheckedNode(node.name, spec, call)
