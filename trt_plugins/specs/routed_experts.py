"""Declaration of ``routed_experts``."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import DATA_TYPE

EXPERT_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")
_ROUTE = ("batch", "time?", "top_k")

ROUTED_EXPERTS = OpSpec(
    name="routed_experts",
    doc=(
        "The experts of a mixture, each token through the top_k that a router chose for it: y = sum_j "
        "expert_weights[j] * down[e] @ a, with e = expert_ids[j] and a = activation(up[e] @ x), or with gated = 1, "
        "where up[e] is gate over up, a = activation(gate[e] @ x) * (up[e] @ x). Every token is on its own: what is "
        "at padding reaches no other token."
    ),
    inputs=(
        TensorSpec("x", "T", ("batch", "time?", "hidden"), "tokens"),
        TensorSpec("expert_ids", DType.INT32, _ROUTE, "chosen experts, 0..experts-1, in any order"),
        TensorSpec("expert_weights", DType.FLOAT32, _ROUTE, "factor of each chosen expert's result"),
        TensorSpec("up_weight", "T", ("experts", "up_size", "hidden"), "up_size: intermediate, twice that if gated"),
        TensorSpec("down_weight", "T", ("experts", "hidden", "intermediate"), "back to the size of x"),
    ),
    outputs=(TensorSpec("y", "T", ("batch", "time?", "hidden"), "the weighted sum"),),
    attributes=(
        AttributeSpec("activation", "string", "silu", "between the two products", EXPERT_ACTIVATIONS),
        AttributeSpec("gated", "int", 1, "1: the first half of up_weight is a gate", (0, 1)),
    ),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    divides=(("intermediate", "up_size"),),
    has_kernels=False,
)
