"""Declaration of ``update_ssm_state``."""

from __future__ import annotations

import math

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS, DATA_TYPE

_FLOAT32_OR_T = (DType.FLOAT32, "T")

UPDATE_SSM_STATE = OpSpec(
    name="update_ssm_state",
    doc=(
        "Mamba2's selective state update (state space duality, arXiv 2405.21060). Per head, with "
        "d[t] = clamp(softplus(dt[t] + dt_bias), time_step_min, time_step_max): "
        "state = exp(A * d[t]) * state + d[t] * outer(x[t], B[t]); y[t] = state @ C[t] + D * x[t]. "
        "Head i reads group i // (heads / groups) of B and C. All state maths is in FP32."
    ),
    inputs=(
        TensorSpec("x", "T", ("batch", "time?", "heads", "head_dim"), "tokens, right-padded"),
        TensorSpec("A", DType.FLOAT32, ("heads",), "log decay per unit of time, negative"),
        TensorSpec("B", "T", ("batch", "time?", "groups", "state_size"), "input projection"),
        TensorSpec("C", "T", ("batch", "time?", "groups", "state_size"), "output projection"),
        TensorSpec("D", "U", ("heads",), "skip connection"),
        TensorSpec("dt", "T", ("batch", "time?", "heads"), "time step before bias, softplus and clamp"),
        TensorSpec("dt_bias", "V", ("heads",), "added to dt first"),
        TensorSpec("state", "S", ("batch", "heads", "head_dim", "state_size"), "state before the first token"),
        CONTEXT_LENGTHS,
    ),
    outputs=(
        TensorSpec("y", "T", ("batch", "time?", "heads", "head_dim"), "zero at tokens past context_lengths"),
        TensorSpec("state_out", "S", ("batch", "heads", "head_dim", "state_size"), "state after the valid tokens"),
    ),
    attributes=(
        AttributeSpec("dt_softplus", "int", 1, "1: softplus(dt + dt_bias); 0: dt + dt_bias", choices=(0, 1)),
        AttributeSpec("time_step_min", "float", 0.0, "lower clamp of the time step, -inf for none"),
        AttributeSpec("time_step_max", "float", math.inf, "upper clamp of the time step, +inf for none"),
        AttributeSpec("chunk_size", "int", 64, "most tokens handled as one matrix; changes rounding only", minimum=1),
    ),
    type_variables=(
        TypeVariable("T", DATA_TYPE),
        TypeVariable("U", DATA_TYPE, one_of=_FLOAT32_OR_T),
        TypeVariable("V", DATA_TYPE, one_of=_FLOAT32_OR_T),
        TypeVariable("S", DATA_TYPE, one_of=_FLOAT32_OR_T),
    ),
    divides=(("groups", "heads"),),
    kernel_limits=(
        DimLimit("head_dim", 8, 256, multiple_of=8),
        DimLimit("state_size", 8, 256, multiple_of=8),
    ),
)
