"""Gated delta net and Kimi Delta Attention around the operators causal_conv1d and gated_delta_rule.

Sources: Yang et al., arXiv 2412.06464; Kimi Linear, arXiv 2510.26692.
"""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.layers.mamba2 import DepthwiseConv
from hybridge.exporter.layers.norm import GatedHeadNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step

Projected = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class FusedProjections(nn.Module):
    """One matrix for q, k, v and the gate, one for b and a; the rows of each key head are stored together."""

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.in_proj_qkvz = nn.Linear(hidden_size, config.conv_dim + config.value_dim, bias=False)
        self.in_proj_ba = nn.Linear(hidden_size, 2 * config.num_value_heads, bias=False)

    def forward(self, x: torch.Tensor) -> Projected:
        """x [..., hidden] -> q, k and v [..., conv_dim], gate [..., value_dim], b and a [..., value_heads]."""
        c = self.config
        ratio = c.num_value_heads // c.num_key_heads
        values = ratio * c.value_size
        by_head = self.in_proj_qkvz(x).unflatten(-1, (c.num_key_heads, 2 * c.key_size + 2 * values))
        q, k, v, gate = by_head.split([c.key_size, c.key_size, values, values], dim=-1)
        b, a = self.in_proj_ba(x).unflatten(-1, (c.num_key_heads, 2 * ratio)).split([ratio, ratio], dim=-1)
        return torch.cat([part.flatten(-2) for part in (q, k, v)], -1), gate.flatten(-2), b.flatten(-2), a.flatten(-2)


class SplitProjections(nn.Module):
    """One matrix for q, k and v, one each for the gate, b and a."""

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.in_proj_qkv = nn.Linear(hidden_size, config.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(hidden_size, config.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden_size, config.num_value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden_size, config.num_value_heads, bias=False)

    def forward(self, x: torch.Tensor) -> Projected:
        """x [..., hidden] -> q, k and v [..., conv_dim], gate [..., value_dim], b and a [..., value_heads]."""
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)


class SeparateProjections(nn.Module):
    """One matrix each for q, k, v, the gate, b and a."""

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(hidden_size, config.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, config.key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, config.value_dim, bias=False)
        self.g_proj = nn.Linear(hidden_size, config.value_dim, bias=False)
        self.b_proj = nn.Linear(hidden_size, config.num_value_heads, bias=False)
        self.a_proj = nn.Linear(hidden_size, config.num_value_heads, bias=False)

    def forward(self, x: torch.Tensor) -> Projected:
        """x [..., hidden] -> q, k and v [..., conv_dim], gate [..., value_dim], b and a [..., value_heads]."""
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        return qkv, self.g_proj(x), self.b_proj(x), self.a_proj(x)


class ChannelProjections(nn.Module):
    """One matrix each for q, k, v, the gate, b and f, the decays of all key channels.

    With ``low_rank`` gate and decays come from two matrices each, with value_size numbers between them.
    """

    def __init__(self, config: GatedDeltaConfig, hidden_size: int) -> None:
        super().__init__()
        self.low_rank = config.projections == "low_rank"
        self.q_proj = nn.Linear(hidden_size, config.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, config.key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, config.value_dim, bias=False)
        self.b_proj = nn.Linear(hidden_size, config.num_value_heads, bias=False)
        if self.low_rank:
            self.f_a_proj = nn.Linear(hidden_size, config.value_size, bias=False)
            self.f_b_proj = nn.Linear(config.value_size, config.decay_dim, bias=False)
            self.g_a_proj = nn.Linear(hidden_size, config.value_size, bias=False)
            self.g_b_proj = nn.Linear(config.value_size, config.value_dim, bias=False)
        else:
            self.f_proj = nn.Linear(hidden_size, config.decay_dim, bias=False)
            self.g_proj = nn.Linear(hidden_size, config.value_dim, bias=False)

    def forward(self, x: torch.Tensor) -> Projected:
        """x [..., hidden] -> q, k and v [..., conv_dim], gate [..., value_dim], b [..., value_heads], f [...,
        value_heads * key_size]."""
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        if self.low_rank:
            return qkv, self.g_b_proj(self.g_a_proj(x)), self.b_proj(x), self.f_b_proj(self.f_a_proj(x))
        return qkv, self.g_proj(x), self.b_proj(x), self.f_proj(x)


PROJECTIONS: dict[str, type[nn.Module]] = {
    "fused": FusedProjections,
    "split": SplitProjections,
    "separate": SeparateProjections,
    "channels": ChannelProjections,
    "low_rank": ChannelProjections,
}


class GatedDeltaNet(nn.Module):
    """Projections -> causal convolution of q, k, v -> gated delta rule -> gated norm of each head -> out_proj.

    ``A``, one number for each value head, is -exp(A_log) in float32; ``dt_bias`` [decay_dim] is float32 as well. The
    log of the decay is A * softplus(a + dt_bias), or decay_bound * sigmoid(-A * (a + dt_bias)), in float32; beta is
    beta_scale * sigmoid(b).
    """

    def __init__(self, config: GatedDeltaConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.config = config
        # Registered here, so that parameters have the checkpoint's names.
        projections = PROJECTIONS[config.projections](config, hidden_size)
        for name, linear in projections.named_children():
            self.add_module(name, linear)
        self._project = projections.forward
        channels = {"conv1d": config.conv_dim}
        if config.has_separate_convolutions:
            parts = config.conv_parts or (config.key_dim, config.key_dim, config.value_dim)
            channels = dict(zip(("q_conv1d", "k_conv1d", "v_conv1d"), parts, strict=True))
        self._convolutions = tuple(channels)
        for name, count in channels.items():
            self.add_module(name, DepthwiseConv(count, config.conv_kernel, bias=False))
        self.A = nn.Parameter(torch.empty(config.decay_shape or (config.num_value_heads,), dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(config.decay_dim, dtype=torch.float32))
        norm_eps = eps if config.norm_eps is None else config.norm_eps
        self.norm = GatedHeadNorm(config.value_size, norm_eps, config.gate_activation)
        self.out_proj = nn.Linear(config.value_dim, hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor, delta_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden]; conv_state [b, conv_dim, k]; delta_state [b, value_heads, key_size, value_size] -> y and
        new states."""
        c = self.config
        qkv, gate, b, a = self._project(x)
        mixed, conv_state_out = step.recurrent(
            "causal_conv1d", (qkv, self._conv_weight(), None, conv_state), (c.activation,)
        )
        q, k, v = mixed.split([c.key_dim, c.key_dim, c.value_dim], dim=-1)
        inputs = (
            q.unflatten(-1, (c.num_key_heads, c.key_size)),
            k.unflatten(-1, (c.num_key_heads, c.key_size)),
            v.unflatten(-1, (c.num_value_heads, c.value_size)),
            self._log_decay(a),
            torch.sigmoid(b) if c.beta_scale == 1.0 else torch.sigmoid(b) * c.beta_scale,
            delta_state,
        )
        decay = "key_channel" if c.has_channel_decay else "head"
        y, delta_state_out = step.recurrent("gated_delta_rule", inputs, (decay, 1, 0.0, 64))
        gated = self.norm(y, gate.unflatten(-1, (c.num_value_heads, c.value_size)))
        return self.out_proj(gated.flatten(-2)), conv_state_out, delta_state_out

    def _log_decay(self, a: torch.Tensor) -> torch.Tensor:
        """a [..., decay_dim] -> [..., value_heads, 1 or key_size] float32."""
        c = self.config
        if not c.has_channel_decay:
            return (self.A * nn.functional.softplus(a.float() + self.dt_bias)).unsqueeze(-1)
        gate, rate = (a.float() + self.dt_bias).unflatten(-1, (c.num_value_heads, c.key_size)), self.A.view(-1, 1)
        if c.decay_bound is not None:
            return c.decay_bound * torch.sigmoid((rate * -1.0) * gate)
        return rate * nn.functional.softplus(gate)

    def _conv_weight(self) -> torch.Tensor:
        """[conv_dim, 1, kernel]."""
        weights: list[torch.Tensor] = [self.get_parameter(f"{name}.weight") for name in self._convolutions]
        return weights[0] if len(weights) == 1 else torch.cat(weights)
