"""Feed-forward blocks: an MLP, or a mixture of experts. No torch, no transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class MlpConfig:
    """A feed-forward block.

    ``projections`` names the layout in the checkpoint: "gated" (gate_proj, up_proj, down_proj), "plain"
    (up_proj, down_proj) or "fused" (input_linear holding gate and up, output_linear). A gated one multiplies what
    gate_proj gives by ``gate_multiplier``, and what down_proj gives by ``down_multiplier``.
    """

    intermediate_size: int
    activation: str
    projections: str = "gated"
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0

    layer_type = "mlp"


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts, of which a router chooses ``top_k`` for each token, and a ``shared`` MLP that all pass.

    ``layout`` names the tensors (moe_parameters.MOE_NAMES). Experts have the activation and, where ``gated``, the form
    of a gated MLP. ``router`` is "softmax" (scores over all experts, ``normalized`` over the chosen ones),
    "top_k_softmax" (over the chosen ones alone), "sigmoid" (biased for the choice, which ``top_groups`` of
    ``groups`` groups limit, without ``correction_bias`` by score alone; then ``normalized``, divided by their sum +
    ``sum_epsilon``, and multiplied by ``scaling``) or "mlp" (an MLP of ``router_size`` behind a norm; its last class
    stands for no expert; with ``router_adds`` its input includes that of the layer before). ``shared_gate``: a sigmoid
    multiplies what the shared MLP gives. ``latent_size`` is the width between two projections that the experts work in.
    ``biased``: the router and both products of the experts have biases. ``alpha`` is a factor in the sigmoid of silu;
    gated experts bound both halves by ``limit`` and add ``offset`` to what the gate multiplies.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    activation: str
    layout: str
    router: str
    gated: bool = True
    normalized: bool = True
    scaling: float = 1.0
    correction_bias: bool = True
    sum_epsilon: float = 1e-20
    groups: int = 1
    top_groups: int = 1
    shared: MlpConfig | None = None
    shared_gate: bool = False
    latent_size: int | None = None
    latent_bias: bool = False
    biased: bool = False
    alpha: float = 1.0
    limit: float = math.inf
    offset: float = 0.0
    router_size: int | None = None
    router_eps: float = 1e-6
    router_adds: bool = False

    layer_type = "moe"

    @property
    def up_size(self) -> int:
        """Rows of an expert's first matrix."""
        return self.intermediate_size * (2 if self.gated else 1)
