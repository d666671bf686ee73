"""The gated short convolution around the operator causal_conv1d (LFM2)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.recurrent_config import ShortConvConfig
from hybridge.exporter.layers.mamba2 import DepthwiseConv
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step


class ShortConv(nn.Module):
    """in_proj -> (B, C, x) -> causal convolution of B * x -> times C -> out_proj. No activation."""

    def __init__(self, config: ShortConvConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.in_proj = nn.Linear(hidden_size, 3 * config.conv_dim, bias=config.bias)
        self.conv1d = DepthwiseConv(config.conv_dim, config.conv_kernel, config.bias)
        self.out_proj = nn.Linear(config.conv_dim, hidden_size, bias=config.bias)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, conv_dim, k], of a packed step its pool -> y and the new state."""
        b, c, inner = self.in_proj(x).chunk(3, dim=-1)
        conv = self.conv1d
        inputs = (b * inner, conv.weight, conv.bias, conv_state)
        mixed, conv_state_out = step.recurrent("causal_conv1d", inputs, (self.config.activation,))
        return self.out_proj(c * mixed), conv_state_out
