"""A router that is an MLP, and adds what the router of the layer before computed (ZAYA1)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.rms_norm import rms_norm
from hybridge.exporter.ops.softmax_or_skip import softmax_or_skip


class RouterNorm(nn.Module):
    """The scale of an RMS norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class RouterMlp(nn.Module):
    """out_proj(gelu(fc2(gelu(fc1(norm(x)))))) in float32."""

    def __init__(self, size: int, classes: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norm = RouterNorm(size)
        self.fc1, self.fc2 = nn.Linear(size, size), nn.Linear(size, size)
        self.out_proj = nn.Linear(size, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [..., size] -> logits float32 [..., classes]."""
        x = rms_norm(x, _wide(self.norm.weight), self.eps)
        for linear in (self.fc1, self.fc2):
            x = F.gelu(F.linear(x, _wide(linear.weight), _wide(linear.bias)))
        return F.linear(x, _wide(self.out_proj.weight))


class MlpRouter(nn.Module):
    """down_proj(x) + scale * the same of the layer before -> MLP -> one expert, or none."""

    def __init__(self, config: MoeConfig, hidden_size: int) -> None:
        super().__init__()
        assert config.router_size is not None
        size, classes = config.router_size, config.num_experts + 1
        self.down_proj = nn.Linear(hidden_size, size)
        self.router_states_scale = nn.Parameter(torch.empty(size)) if config.router_adds else None
        self.router_mlp = RouterMlp(size, classes, config.router_eps)
        self.balancing_biases = nn.Parameter(torch.empty(classes, dtype=torch.float32))

    def forward(self, x: torch.Tensor, step: Step | PackedStep) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., hidden] -> weights float32 and ids int32 [..., 1]; ``step`` carries what the next layer adds."""
        states = F.linear(x.float(), _wide(self.down_proj.weight), _wide(self.down_proj.bias))
        if self.router_states_scale is not None:
            assert step.router_states is not None
            states = states + step.router_states * _wide(self.router_states_scale)
        step.router_states = states
        return softmax_or_skip(self.router_mlp(states), self.balancing_biases)


def _wide(parameter: torch.Tensor) -> torch.Tensor:
    """``parameter`` in float32; a cast that changes nothing would rename the initializer in the graph."""
    return parameter if parameter.dtype is torch.float32 else parameter.float()
