"""Declaration of ``mamba2_conv_scan``."""

from __future__ import annotations

import math

from hybridge.trt_plugins.spec import AttributeSpec, DimLimit, OpSpec, TensorSpec
from hybridge.trt_plugins.specs.causal_conv1d import CAUSAL_CONV1D
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS
from hybridge.trt_plugins.specs.update_ssm_state import UPDATE_SSM_STATE

MAMBA2_CONV_SCAN = OpSpec(
    name="mamba2_conv_scan",
    doc=(
        "Mamba2's mixer between its two projections: causal_conv1d over the channels of x, B and C, update_ssm_state "
        "of what comes out, and the gate, y = silu(gate) * update_ssm_state(...). The channels of conv_input are x "
        "[heads, head_dim], then B [groups, state_size], then C [groups, state_size], where "
        "groups = (conv_dim - inner) / (2 * state_size) and inner = heads * head_dim."
    ),
    inputs=(
        TensorSpec("conv_input", "T", ("batch", "time?", "conv_dim"), "x, B and C before the convolution"),
        TensorSpec("gate", "T", ("batch", "time?", "inner"), "SiLU of it multiplies y"),
        TensorSpec("dt", "T", ("batch", "time?", "heads"), "time step before bias, softplus and clamp"),
        TensorSpec("conv_weight", "T", ("conv_dim", 1, "kernel"), "one filter a channel, oldest tap first"),
        TensorSpec("conv_bias", "T", ("conv_dim",), "added before the activation", optional=True),
        TensorSpec("A", UPDATE_SSM_STATE.inputs[1].dtype, ("heads",), "log decay per unit of time, negative"),
        TensorSpec("D", "U", ("heads",), "skip connection"),
        TensorSpec("dt_bias", "V", ("heads",), "added to dt first"),
        TensorSpec("conv_state", "T", ("batch", "conv_dim", "kernel"), "last inputs, oldest first, pre-activation"),
        TensorSpec("state", "S", ("batch", "heads", "head_dim", "state_size"), "state before the first token"),
        CONTEXT_LENGTHS,
    ),
    outputs=(
        TensorSpec("y", "T", ("batch", "time?", "inner"), "zero at tokens past context_lengths"),
        TensorSpec("conv_state_out", "T", ("batch", "conv_dim", "kernel"), "the state after the valid tokens"),
        TensorSpec("state_out", "S", ("batch", "heads", "head_dim", "state_size"), "state after the valid tokens"),
    ),
    attributes=(
        AttributeSpec("activation", "string", "silu", "of the convolution", choices=("none", "silu")),
        AttributeSpec("dt_softplus", "int", 1, "1: softplus(dt + dt_bias); 0: dt + dt_bias", choices=(0, 1)),
        AttributeSpec("time_step_min", "float", 0.0, "lower clamp of the time step, -inf for none"),
        AttributeSpec("time_step_max", "float", math.inf, "upper clamp of the time step, +inf for none"),
        AttributeSpec("chunk_size", "int", 64, "most tokens handled as one matrix; changes rounding only", minimum=1),
    ),
    type_variables=UPDATE_SSM_STATE.type_variables,
    divides=(("heads", "inner"),),
    kernel_limits=(
        *CAUSAL_CONV1D.kernel_limits,
        DimLimit("head_dim", 8, 256, multiple_of=8),
        DimLimit("state_size", 8, 256, multiple_of=8),
    ),
)


def group_count(conv_dim: int, inner: int, state_size: int) -> int:
    """Groups of B and C among ``conv_dim`` channels; 0 where the sizes leave no whole number of them."""
    groups, rest = divmod(conv_dim - inner, 2 * state_size)
    return groups if rest == 0 and groups > 0 else 0
