"""Declaration of ``rounded_experts``."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, TensorSpec
from hybridge.trt_plugins.specs.routed_experts import ROUTED_EXPERTS

INT8, FP8, NVFP4 = "int8", "fp8", "nvfp4"
STATIC = -1
"""Value of ``group``: one stored scale for all tokens."""

_BIASES = ROUTED_EXPERTS.input_index("up_bias")  # behind the scales: they may be absent

ROUNDED_EXPERTS = replace(
    ROUTED_EXPERTS,
    name="rounded_experts",
    doc=(
        "routed_experts whose products round their inputs first, as a quantised checkpoint asks. A scale is the "
        "largest magnitude of a group of features divided by the largest number of the type, or the expert's own."
    ),
    inputs=(
        *ROUTED_EXPERTS.inputs[:_BIASES],
        TensorSpec("up_input_scale", DType.FLOAT32, ("experts",), "of inputs of up_weight; nvfp4: factor of scales"),
        TensorSpec("down_input_scale", DType.FLOAT32, ("experts",), "the same for down_weight"),
        *ROUTED_EXPERTS.inputs[_BIASES:],
    ),
    attributes=(
        *ROUTED_EXPERTS.attributes,
        AttributeSpec("rounding", "string", INT8, "the type that inputs are rounded to", (INT8, FP8, NVFP4)),
        AttributeSpec("group", "int", 0, "features that share a scale; 0: all of a token; -1: static", minimum=STATIC),
    ),
)
