"""Declaration of ``selective_scan``."""

from __future__ import annotations

import math

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS, DATA_TYPE

_FLOAT32_OR_T = (DType.FLOAT32, "T")

SELECTIVE_SCAN = OpSpec(
    name="selective_scan",
    doc=(
        "Mamba1's selective scan (arXiv 2312.00752). Per channel c, with "
        "d[t] = clamp(softplus(dt[t] + dt_bias), time_step_min, time_step_max): "
        "state[c] = exp(A[c] * d[t, c]) * state[c] + d[t, c] * x[t, c] * B[t]; "
        "y[t, c] = state[c] @ C[t] + D[c] * x[t, c]. "
        "Channel c reads group c // (channels / groups) of B and C. All state maths is in FP32."
    ),
    inputs=(
        TensorSpec("x", "T", ("batch", "time?", "channels"), "tokens, right-padded"),
        TensorSpec("A", DType.FLOAT32, ("channels", "state_size"), "log decay per unit of time, negative"),
        TensorSpec("B", "T", ("batch", "time?", "groups", "state_size"), "input projection"),
        TensorSpec("C", "T", ("batch", "time?", "groups", "state_size"), "output projection"),
        TensorSpec("D", "U", ("channels",), "skip connection"),
        TensorSpec("dt", "T", ("batch", "time?", "channels"), "time step before bias, softplus and clamp"),
        TensorSpec("dt_bias", "V", ("channels",), "added to dt first"),
        TensorSpec("state", "S", ("batch", 1, "channels", "state_size"), "state before the first token"),
        CONTEXT_LENGTHS,
    ),
    outputs=(
        TensorSpec("y", "T", ("batch", "time?", "channels"), "zero at tokens past context_lengths"),
        TensorSpec("state_out", "S", ("batch", 1, "channels", "state_size"), "state after the valid tokens"),
    ),
    attributes=(
        AttributeSpec("dt_softplus", "int", 1, "1: softplus(dt + dt_bias); 0: dt + dt_bias", choices=(0, 1)),
        AttributeSpec("time_step_min", "float", 0.0, "lower clamp of the time step, -inf for none"),
        AttributeSpec("time_step_max", "float", math.inf, "upper clamp of the time step, +inf for none"),
    ),
    type_variables=(
        TypeVariable("T", DATA_TYPE),
        TypeVariable("U", DATA_TYPE, one_of=_FLOAT32_OR_T),
        TypeVariable("V", DATA_TYPE, one_of=_FLOAT32_OR_T),
        TypeVariable("S", DATA_TYPE, one_of=_FLOAT32_OR_T),
    ),
    divides=(("groups", "channels"),),
    kernel_limits=(DimLimit("state_size", 8, 64, multiple_of=8, also=1),),
)
