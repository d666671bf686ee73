"""Linear attention with constant decays around the operator update_ssm_state (MiniMax-01, arXiv 2501.08313)."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.recurrent_config import LightningAttentionConfig
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step

# Limits of the time step: with both 1, it is 1 for every dt.
STEP_LIMITS = (1.0, 1.0)


class LightningAttention(nn.Module):
    """SiLU of q, k and v by head -> state = decay * state + outer(v, k), y = state @ q -> gated norm -> out_proj.

    This is Mamba2's recurrence with keys as B, queries as C and a time step of 1. ``log_decays`` [heads] is float32.
    """

    def __init__(self, config: LightningAttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.qkv_proj = nn.Linear(hidden_size, 3 * config.width, bias=False)
        self.log_decays = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))
        self.norm = RmsNorm(config.width, config.norm_eps)
        self.output_gate = nn.Linear(hidden_size, config.width, bias=False)
        self.out_proj = nn.Linear(config.width, hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., hidden]; state [b, heads, head_dim of values, head_dim of keys] -> y and the new state."""
        c = self.config
        by_head = nn.functional.silu(self.qkv_proj(x)).unflatten(-1, (c.num_heads, 3 * c.head_dim))
        q, k, v = by_head.split([c.head_dim] * 3, dim=-1)
        any_number, _ = by_head.split([1, 3 * c.head_dim - 1], dim=-1)
        none = self.log_decays * 0.0
        inputs = (v, self.log_decays, k, q, none, any_number.flatten(-2), none, state)
        y, state_out = step.recurrent("update_ssm_state", inputs, (0, *STEP_LIMITS, c.chunk_size))
        gated = torch.sigmoid(self.output_gate(x)) * self.norm(y.flatten(-2))
        return self.out_proj(gated), state_out
