"""Grouped-query attention over a KV cache that is an explicit input and output."""

from __future__ import annotations

import torch
from torch import nn

from exporter.graph import standard_ops as ops
from exporter.layers.norm import RmsNorm
from exporter.layers.step import Step
from exporter.models.decoder_config import AttentionConfig


class Attention(nn.Module):
    """q, k, v projections, optional head norms and rotary embedding, cache update, attention, output projection."""

    def __init__(self, config: AttentionConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(hidden_size, width * (2 if config.output_gate else 1), bias=config.bias)
        self.k_proj = nn.Linear(hidden_size, kv_width, bias=config.bias)
        self.v_proj = nn.Linear(hidden_size, kv_width, bias=config.bias)
        self.o_proj = nn.Linear(width, hidden_size, bias=config.output_bias)
        if config.qk_norm:
            joint = config.qk_norm_joint
            self.q_norm = RmsNorm(width if joint else config.head_dim, eps, config.norm_offset)
            self.k_norm = RmsNorm(kv_width if joint else config.head_dim, eps, config.norm_offset)

    def forward(
        self,
        x: torch.Tensor,
        step: Step,
        inv_freq: torch.Tensor | None,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [b, t, hidden]; caches [b, kv_heads, max_seq, head_dim] -> y [b, t, hidden] and the new caches."""
        config = self.config
        q, gate = self._query(x)
        keys = self.k_proj(x)
        if config.qk_norm_joint:
            keys = self.k_norm(keys)
        k = self._heads(keys, config.num_kv_heads)
        v = self._heads(self.v_proj(x), config.num_kv_heads)
        if config.qk_norm and not config.qk_norm_joint:
            q, k = self.q_norm(q), self.k_norm(k)
        if config.rope is not None and inv_freq is not None:
            cos, sin = step.rotary(config.rope, inv_freq)
            q, k = ops.rotary_embedding(q, cos, sin), ops.rotary_embedding(k, cos, sin)
        slots = step.slots()
        key, value = updated_cache(past_key, k, slots), updated_cache(past_value, v, slots)
        y = ops.attention(q, key, value, step.mask(config.sliding_window), config.scale)
        y = y.transpose(1, 2).flatten(2)
        return self.o_proj(y if gate is None else y * torch.sigmoid(gate)), key, value

    def _query(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries [b, heads, t, head_dim] and, where the layer has one, the output gate [b, t, heads * head_dim]."""
        q = self.q_proj(x)
        if self.config.qk_norm_joint:
            q = self.q_norm(q)
        if not self.config.output_gate:
            return self._heads(q, self.config.num_heads), None
        q, gate = q.unflatten(-1, (self.config.num_heads, 2 * self.config.head_dim)).chunk(2, dim=-1)
        return q.transpose(1, 2), gate.flatten(2)

    def _heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """[b, t, heads * head_dim] -> [b, heads, t, head_dim]."""
        return x.unflatten(-1, (heads, self.config.head_dim)).transpose(1, 2)


def updated_cache(past: torch.Tensor, new: torch.Tensor, slots: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """``past`` [b, h, max_seq, d] with the valid tokens of ``new`` [b, h, t, d] at their positions, else unchanged."""
    start, positions, source, valid = slots
    _, heads, _, head_dim = new.shape
    old = past.gather(2, positions.expand(-1, heads, -1, head_dim))
    moved = new.gather(2, source.expand(-1, heads, -1, head_dim))
    return ops.tensor_scatter(past, torch.where(valid, moved, old), start)
