"""Declaration of ``routed_experts``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import DATA_TYPE

EXPERT_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")


@dataclass(frozen=True)
class ExpertActivation:
    """What is computed between an expert's two products: attributes of the operator."""

    name: str
    gated: bool
    alpha: float = 1.0
    limit: float = math.inf
    offset: float = 0.0

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ExpertActivation:
        """That of the complete ``attributes`` of a node."""
        numbers = (float(attributes[name]) for name in ("alpha", "limit", "offset"))
        return cls(str(attributes["activation"]), bool(attributes["gated"]), *numbers)


_ROUTE = ("batch", "time?", "top_k")

ROUTED_EXPERTS = OpSpec(
    name="routed_experts",
    doc=(
        "The experts of a mixture, each token through the top_k that a router chose for it: y = sum_j "
        "expert_weights[j] * (down[e] @ a + down_bias[e]), with e = expert_ids[j] and u = up[e] @ x + up_bias[e]. a = "
        "activation(u), or with gated = 1, where u is g over v, a = activation(min(g, limit)) * (clip(v, -limit, "
        "limit) + offset). silu(z) is z * sigmoid(alpha * z). Every token is on its own: what is at padding reaches no "
        "other token."
    ),
    inputs=(
        TensorSpec("x", "T", ("batch", "time?", "hidden"), "tokens"),
        TensorSpec("expert_ids", DType.INT32, _ROUTE, "chosen experts, 0..experts-1, in any order"),
        TensorSpec("expert_weights", DType.FLOAT32, _ROUTE, "factor of each chosen expert's result"),
        TensorSpec("up_weight", "T", ("experts", "up_size", "hidden"), "up_size: intermediate, twice that if gated"),
        TensorSpec("down_weight", "T", ("experts", "hidden", "intermediate"), "back to the size of x"),
        TensorSpec("up_bias", "T", ("experts", "up_size"), "of the first product", optional=True, selects=True),
        TensorSpec("down_bias", "T", ("experts", "hidden"), "of the second product", optional=True, selects=True),
    ),
    outputs=(TensorSpec("y", "T", ("batch", "time?", "hidden"), "the weighted sum"),),
    attributes=(
        AttributeSpec("activation", "string", "silu", "between the two products", EXPERT_ACTIVATIONS),
        AttributeSpec("gated", "int", 1, "1: the first half of up_weight is a gate", (0, 1)),
        AttributeSpec("alpha", "float", 1.0, "factor in the sigmoid of silu"),
        AttributeSpec("limit", "float", math.inf, "bound of both halves where gated", minimum=0.0),
        AttributeSpec("offset", "float", 0.0, "added to what the gate multiplies"),
    ),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    divides=(("intermediate", "up_size"),),
    has_kernels=False,
)
