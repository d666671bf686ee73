"""Sparse mixture of experts: router, routed experts, shared expert."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.layers.mlp import MLPS
from hybridge.exporter.layers.mlp_router import MlpRouter
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.sigmoid_top_k import sigmoid_top_k
from hybridge.exporter.ops.softmax_top_k import softmax_top_k
from hybridge.exporter.ops.top_k_softmax import top_k_softmax


class Router(nn.Module):
    """Logits of every expert in float32, whatever the compute type: a rounded logit may choose another expert."""

    def __init__(self, config: MoeConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(config.num_experts, dtype=torch.float32)) if config.biased else None
        has_bias = config.router == "sigmoid" and config.correction_bias
        self.correction_bias = nn.Parameter(torch.empty(config.num_experts, dtype=torch.float32)) if has_bias else None

    def forward(self, x: torch.Tensor, _step: Step | PackedStep) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., hidden] -> weights float32 and ids int32 [..., top_k]."""
        c = self.config
        # A cast that changes nothing would rename the initializer in the graph.
        weight = self.weight if self.weight.dtype is torch.float32 else self.weight.float()
        logits = F.linear(x.float(), weight, self.bias)
        if c.router == "softmax":
            return softmax_top_k(logits, c.top_k, c.normalized)
        if c.router == "top_k_softmax":
            return top_k_softmax(logits, c.top_k)
        choice = (c.top_k, c.groups, c.top_groups, c.normalized, c.scaling, c.sum_epsilon)
        return sigmoid_top_k(logits, self.correction_bias, *choice)


class Experts(nn.Module):
    """The weights of all experts: ``up`` [experts, (gate and) up, width], ``down`` [experts, width, intermediate].

    ``up_bias`` [experts, (gate and) up] and ``down_bias`` [experts, width] where the experts have biases.
    """

    def __init__(self, config: MoeConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Parameter(torch.empty(config.num_experts, config.up_size, width))
        self.down = nn.Parameter(torch.empty(config.num_experts, width, config.intermediate_size))
        self.up_bias = self.down_bias = None
        if config.biased:
            self.up_bias = nn.Parameter(torch.empty(config.num_experts, config.up_size))
            self.down_bias = nn.Parameter(torch.empty(config.num_experts, width))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """x [..., width], weights and ids [..., top_k] -> [..., width]; packed tokens have one axis before the last."""
        c = self.config
        tensors = (x, ids, weights, self.up, self.down, self.up_bias, self.down_bias)
        return torch.ops.trt_edgellm.routed_experts(*tensors, c.activation, int(c.gated), c.alpha, c.limit, c.offset)


class SparseMoe(nn.Module):
    """latent_out(experts(latent_in(x))) + gate(x) * shared(x); everything but the experts is optional."""

    def __init__(self, config: MoeConfig, hidden_size: int) -> None:
        super().__init__()
        self.router = (MlpRouter if config.router == "mlp" else Router)(config, hidden_size)
        width = config.latent_size or hidden_size
        self.experts = Experts(config, width)
        self.latent_in = self.latent_out = self.shared = self.shared_gate = None
        if config.latent_size is not None:
            self.latent_in = nn.Linear(hidden_size, width, bias=config.latent_bias)
            self.latent_out = nn.Linear(width, hidden_size, bias=config.latent_bias)
        if config.shared is not None:
            self.shared = MLPS[config.shared.projections](config.shared, hidden_size)
        if config.shared_gate:
            self.shared_gate = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, x: torch.Tensor, step: Step | PackedStep) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        weights, ids = self.router(x, step)
        y = self.experts(x if self.latent_in is None else self.latent_in(x), weights, ids)
        if self.latent_out is not None:
            y = self.latent_out(y)
        if self.shared is None:
            return y
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return y + shared
