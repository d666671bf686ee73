"""The Mamba2 mixer around the operators causal_conv1d and update_ssm_state (Dao and Gu 2024)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.recurrent_config import MambaConfig
from hybridge.exporter.layers.norm import GatedRmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step


class DepthwiseConv(nn.Module):
    """The convolution's parameters: weight [conv_dim, 1, kernel], optional bias [conv_dim]."""

    def __init__(self, conv_dim: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(conv_dim, 1, kernel))
        self.bias = nn.Parameter(torch.empty(conv_dim)) if bias else None


class Mamba2Mixer(nn.Module):
    """in_proj -> (gate, conv input, dt) -> causal convolution -> SSM state update -> gated norm -> out_proj.

    ``A`` [heads] is -exp(A_log) in float32, ``D`` and ``dt_bias`` [heads] are float32 as well, whatever the
    compute type is.
    """

    def __init__(self, config: MambaConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.config = config
        width = config.intermediate_size + config.conv_dim + config.num_heads
        self.in_proj = nn.Linear(hidden_size, width, bias=config.proj_bias)
        self.conv1d = DepthwiseConv(config.conv_dim, config.conv_kernel, config.conv_bias)
        self.A = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))
        self.norm = self.multipliers = None
        if config.has_norm:
            self.norm = GatedRmsNorm(
                config.intermediate_size, config.norm_groups, config.norm_eps or eps, config.norm_before_gate
            )
        if config.multipliers is not None:
            self.multipliers = nn.Parameter(torch.empty(width, dtype=torch.float32))
        out_bias = config.proj_bias if config.out_bias is None else config.out_bias
        self.out_proj = nn.Linear(config.intermediate_size, hidden_size, bias=out_bias)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor, ssm_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, conv_dim, k]; ssm_state [b, heads, head_dim, state] -> y and new states.

        The states of a packed step are pools.
        """
        c = self.config
        projected = self.in_proj(x)
        if self.multipliers is not None:
            # A cast that changes nothing would rename the initializer in the graph.
            narrow = projected.dtype is not torch.float32
            projected = projected * (self.multipliers.to(projected.dtype) if narrow else self.multipliers)
        gate, conv_input, dt = projected.split([c.intermediate_size, c.conv_dim, c.num_heads], dim=-1)
        mixed, conv_state_out = step.recurrent(
            "causal_conv1d", (conv_input, self.conv1d.weight, self.conv1d.bias, conv_state), (c.activation,)
        )
        groups_width = c.num_groups * c.state_size
        inner, b, c_out = mixed.split([c.intermediate_size, groups_width, groups_width], dim=-1)
        inputs = (
            inner.unflatten(-1, (c.num_heads, c.head_dim)),
            self.A,
            b.unflatten(-1, (c.num_groups, c.state_size)),
            c_out.unflatten(-1, (c.num_groups, c.state_size)),
            self.D,
            dt,
            self.dt_bias,
            ssm_state,
        )
        y, ssm_state_out = step.recurrent("update_ssm_state", inputs, (1, *c.time_step_limit, c.chunk_size))
        y = y.flatten(-2)
        y = gated(y, gate) if self.norm is None else self.norm(y, gate)
        return self.out_proj(y), conv_state_out, ssm_state_out


def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x * SiLU(gate), computed in float32, in the type of x."""
    return (x.float() * nn.functional.silu(gate.float())).to(x.dtype)
