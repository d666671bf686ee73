"""Check the exported file against its declaration: inputs, outputs, operators, and nothing else."""

from __future__ import annotations

import onnx

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ExportError

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
PLUGIN_DOMAIN = "trt_edgellm"


def check_model(model: onnx.ModelProto, bindings: GraphBindings) -> None:
    """Run onnx.checker on the graph and compare its inputs, outputs, domains and weights with what is declared.

    ExportError names the first disagreement.
    """
    try:
        onnx.checker.check_model(without_weights(model), full_check=False)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"onnx.checker refuses the exported graph: {error}") from error
    check_interface(model, bindings)
    check_weights_external(model)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose initializers are graph inputs of the same type and shape.

    onnx.checker opens external data, and refuses files with several hard links, which is how an artifact shares
    its weights with the checkpoint; the graph itself is checked all the same.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:]
    for tensor in model.graph.initializer:
        copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return copy


def check_interface(model: onnx.ModelProto, bindings: GraphBindings) -> None:
    """Raise ExportError unless names, types and axes of inputs and outputs are exactly the declared ones."""
    for kind, values, declared in (
        ("input", model.graph.input, bindings.inputs),
        ("output", model.graph.output, bindings.outputs),
    ):
        found = tuple(_binding(value) for value in values)
        expected = tuple(Binding(b.name, b.dtype, b.shape) for b in declared)
        if found != expected:
            pair = next(((e, f) for e, f in zip(expected, found, strict=False) if e != f), (len(expected), len(found)))
            raise ExportError(f"graph {kind}s: expected {pair[0]}, found {pair[1]}")
    foreign = {node.domain for node in model.graph.node} - STANDARD_DOMAINS - {PLUGIN_DOMAIN}
    if foreign:
        raise ExportError(
            f"the graph holds nodes of the domains {sorted(foreign)}: expected only ONNX and {PLUGIN_DOMAIN}"
        )


def check_weights_external(model: onnx.ModelProto) -> None:
    """Raise ExportError when a weight carries its bytes inside model.onnx (the operators' own zeros may)."""
    for tensor in model.graph.initializer:
        own = tensor.name.startswith(f"{PLUGIN_DOMAIN}.")
        if tensor.data_location != onnx.TensorProto.EXTERNAL and not own:
            raise ExportError(f"initializer {tensor.name} is inside the graph: expected external data")


def _binding(value: onnx.ValueInfoProto) -> Binding:
    tensor = value.type.tensor_type
    shape = tuple(d.dim_param or d.dim_value for d in tensor.shape.dim)
    return Binding(value.name, DType.from_onnx(tensor.elem_type), shape)
