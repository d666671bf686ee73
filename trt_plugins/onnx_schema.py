"""ONNX schemas of the operators, made from their specs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import onnx
import onnx.shape_inference
from onnx import defs
from onnx.defs import OpSchema

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import all_specs
from hybridge.trt_plugins.spec import AttributeSpec, OpSpec, TensorSpec

_TYPE_NAMES = {
    DType.FLOAT16: "tensor(float16)",
    DType.BFLOAT16: "tensor(bfloat16)",
    DType.FLOAT32: "tensor(float)",
    DType.INT32: "tensor(int32)",
    DType.INT64: "tensor(int64)",
    DType.BOOL: "tensor(bool)",
    DType.INT8: "tensor(int8)",
    DType.UINT8: "tensor(uint8)",
}


@cache
def register_schemas() -> None:
    """Register the schema of every operator with the onnx package; safe to call again."""
    for spec in all_specs():
        if not _is_registered(spec):
            defs.register_schema(schema_from_spec(spec))


def _is_registered(spec: OpSpec) -> bool:
    try:
        found = defs.get_schema(spec.name, spec.version, spec.domain)
    except defs.SchemaError:
        return False
    return found.since_version == spec.version


def schema_from_spec(spec: OpSpec) -> OpSchema:
    """The schema with type variables, attributes with defaults, and inference of the outputs' types and shapes."""
    schema = OpSchema(
        spec.name,
        spec.domain,
        spec.version,
        spec.doc,
        inputs=[_parameter(tensor) for tensor in spec.inputs],
        outputs=[_parameter(tensor) for tensor in spec.outputs],
        type_constraints=[
            (variable.name, [_TYPE_NAMES[dtype] for dtype in variable.allowed], "") for variable in spec.type_variables
        ],
        attributes=[_attribute(attribute) for attribute in spec.attributes],
    )
    schema.set_type_and_shape_inference_function(_inference(spec))
    return schema


def _parameter(tensor: TensorSpec) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption.Optional if tensor.optional else OpSchema.FormalParameterOption.Single
    type_name = _TYPE_NAMES[tensor.dtype] if isinstance(tensor.dtype, DType) else tensor.dtype
    dims = ", ".join(str(dim) for dim in tensor.dims)
    return OpSchema.FormalParameter(tensor.name, type_name, f"[{dims}] {tensor.doc}", param_option=option)


def _attribute(attribute: AttributeSpec) -> OpSchema.Attribute:
    default = onnx.helper.make_attribute(attribute.name, attribute.default)
    return OpSchema.Attribute(attribute.name, default, attribute.doc)


def _inference(spec: OpSpec) -> Callable[[onnx.shape_inference.InferenceContext], None]:
    """Outputs have the type and shape of an input, or sizes of several, as the spec declares."""

    def infer(context: onnx.shape_inference.InferenceContext) -> None:
        for index, output in enumerate(spec.outputs):
            like_input = spec.is_like_input(output)
            found = context.get_input_type(spec.output_source(output)) if like_input else _sized(spec, output, context)
            if found is not None:
                context.set_output_type(index, found)

    return infer


def _sized(spec: OpSpec, output: TensorSpec, context: onnx.shape_inference.InferenceContext) -> onnx.TypeProto:
    assert isinstance(output.dtype, DType)
    dims: list[int | str | None] = []
    for size in spec.output_sizes(output):
        source = None if isinstance(size, int) else context.get_input_type(size[0])
        if isinstance(size, int) or source is None or not source.tensor_type.HasField("shape"):
            dims.append(size if isinstance(size, int) else None)
        else:
            dim = source.tensor_type.shape.dim[size[1]]
            dims.append(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None)
    return onnx.helper.make_tensor_type_proto(output.dtype.onnx, dims)
