"""Declaration of ``causal_conv1d``."""

from __future__ import annotations

from hybridge.trt_plugins.spec import AttributeSpec, DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS, DATA_TYPE

CAUSAL_CONV1D = OpSpec(
    name="causal_conv1d",
    doc=(
        "Depthwise causal convolution over the token axis with a carried state. With s = concat(conv_state, x) "
        "along the tokens, y[t] = activation(bias + sum_j weight[j] * s[t + 1 + j]) for j in 0..kernel-1, and "
        "conv_state_out holds the last `kernel` columns of concat(conv_state, valid x)."
    ),
    inputs=(
        TensorSpec("x", "T", ("batch", "time?", "conv_dim"), "tokens, right-padded"),
        TensorSpec("weight", "T", ("conv_dim", 1, "kernel"), "one filter a channel, oldest tap first"),
        TensorSpec("bias", "T", ("conv_dim",), "added before the activation", optional=True),
        TensorSpec("conv_state", "T", ("batch", "conv_dim", "kernel"), "last inputs, oldest first, pre-activation"),
        CONTEXT_LENGTHS,
    ),
    outputs=(
        TensorSpec("y", "T", ("batch", "time?", "conv_dim"), "zero at tokens past context_lengths"),
        TensorSpec("conv_state_out", "T", ("batch", "conv_dim", "kernel"), "the state after the valid tokens"),
    ),
    attributes=(AttributeSpec("activation", "string", "none", "applied to the sum", choices=("none", "silu")),),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    kernel_limits=(DimLimit("kernel", 2, 8),),
)
