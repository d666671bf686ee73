"""The Mamba1 mixer around the operators causal_conv1d and selective_scan (Gu and Dao 2023, arXiv 2312.00752)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.mamba1_config import INNER_NORMS, HeadedMamba1Config, Mamba1Config
from hybridge.exporter.layers.head_products import by_rows_of_head
from hybridge.exporter.layers.mamba2 import DepthwiseConv, gated
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.grouped_rms_norm import grouped_rms_norm


class Mamba1Mixer(nn.Module):
    """in_proj -> (conv input, gate) -> causal convolution -> x_proj -> (dt, B, C) -> selective scan, gate, out_proj.

    ``A`` [channels, state] is -exp(A_log) in float32; ``D`` and ``dt_bias`` [channels], the bias of dt_proj, are
    float32 as well, whatever the compute type is.
    """

    def __init__(self, config: Mamba1Config, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        channels = config.intermediate_size
        self.in_proj = nn.Linear(hidden_size, 2 * channels, bias=config.proj_bias)
        self.conv1d = DepthwiseConv(channels, config.conv_kernel, config.conv_bias)
        self.x_proj = nn.Linear(channels, sum(config.inner_sizes), bias=False)
        self.dt_proj = nn.Linear(config.rank, channels, bias=False)
        self.A = nn.Parameter(torch.empty(channels, config.state_size, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(channels, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(channels, dtype=torch.float32))
        if config.inner_norms == "weighted":
            for name, size in zip(INNER_NORMS, config.inner_sizes, strict=True):
                self.add_module(name, RmsNorm(size, config.norm_eps))
        self.out_proj = nn.Linear(channels, hidden_size, bias=config.proj_bias)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor, ssm_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, channels, k]; ssm_state [b, 1, channels, state] -> y and new states.

        The states of a packed step are pools.
        """
        conv_input, gate = self.in_proj(x).chunk(2, dim=-1)
        inner, conv_state_out = step.recurrent(
            "causal_conv1d", (conv_input, self.conv1d.weight, self.conv1d.bias, conv_state), (self.config.activation,)
        )
        parts = self.x_proj(inner).split(self.config.inner_sizes, dim=-1)
        dt, b, c = (self._normed(part, name) for part, name in zip(parts, INNER_NORMS, strict=True))
        groups = (b.unsqueeze(-2), c.unsqueeze(-2))
        inputs = (inner, self.A, *groups, self.D, self.dt_proj(dt), self.dt_bias, ssm_state)
        y, ssm_state_out = step.recurrent("selective_scan", inputs, (1, 0.0, float("inf")))
        return self.out_proj(gated(y, gate)), conv_state_out, ssm_state_out

    def _normed(self, part: torch.Tensor, norm: str) -> torch.Tensor:
        if self.config.inner_norms == "plain":
            return grouped_rms_norm(part.float(), 1, self.config.norm_eps).to(part.dtype)
        return self.get_submodule(norm)(part) if self.config.inner_norms else part


class HeadedMamba1Mixer(nn.Module):
    """As Mamba1Mixer, with matrices of each head for dt, B and C; in_proj's rows alternate: conv input, gate.

    ``A`` [heads, head_dim, state], ``D`` and ``dt_bias`` [heads, head_dim] are float32. A head is a group of the
    selective scan.
    """

    def __init__(self, config: HeadedMamba1Config, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        channels, heads = config.intermediate_size, (config.num_heads, config.head_dim)
        self.in_proj = nn.Linear(hidden_size, 2 * channels, bias=config.proj_bias)
        self.conv1d = DepthwiseConv(channels, config.conv_kernel, config.conv_bias)
        self.x_proj_weight = nn.Parameter(torch.empty(config.num_heads, sum(config.inner_sizes), config.head_dim))
        self.dt_proj_weight = nn.Parameter(torch.empty(*heads, config.rank))
        self.A = nn.Parameter(torch.empty(*heads, config.state_size, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.out_proj = nn.Linear(channels, hidden_size, bias=config.proj_bias)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor, ssm_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, channels, k]; ssm_state [b, 1, channels, state] -> y and new states.

        The states of a packed step are pools.
        """
        c = self.config
        pairs = self.in_proj(x).unflatten(-1, (c.intermediate_size, 2)).split([1, 1], dim=-1)
        conv_input, gate = (part.flatten(-2) for part in pairs)
        inner, conv_state_out = step.recurrent(
            "causal_conv1d", (conv_input, self.conv1d.weight, self.conv1d.bias, conv_state), (c.activation,)
        )
        projected = by_rows_of_head(self.x_proj_weight, inner.unflatten(-1, (c.num_heads, c.head_dim)))
        dt, b, c_out = projected.split(c.inner_sizes, dim=-1)
        dt = by_rows_of_head(self.dt_proj_weight, dt).flatten(-2)
        per_channel = (self.A.flatten(0, 1), b, c_out, self.D.flatten(), dt, self.dt_bias.flatten())
        y, ssm_state_out = step.recurrent("selective_scan", (inner, *per_channel, ssm_state), (1, 0.0, float("inf")))
        return self.out_proj(gated(y, gate)), conv_state_out, ssm_state_out
