"""Grouped-query attention over a KV cache that is an explicit input and output."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.rotary_embedding import rotary_embedding


class Attention(nn.Module):
    """q, k, v projections, optional head norms and rotary embedding, cache update, attention, output projection."""

    def __init__(self, config: AttentionConfig, hidden_size: int, eps: float, input_size: int | None = None) -> None:
        """``input_size`` None is ``hidden_size``, to which the output projection leads."""
        super().__init__()
        self.config = config
        columns = input_size or hidden_size
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        if config.fused:
            self.qkv_proj = nn.Linear(columns, width + 2 * kv_width, bias=config.bias)
        else:
            self.q_proj = nn.Linear(columns, width * (2 if config.output_gate else 1), bias=config.bias)
            self.k_proj = nn.Linear(columns, kv_width, bias=config.bias)
            self.v_proj = nn.Linear(columns, kv_width, bias=config.bias)
        self.o_proj = nn.Linear(width, hidden_size, bias=config.output_bias)
        self.sinks = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32)) if config.sinks else None
        self.g_proj = nn.Linear(columns, config.num_heads, bias=False) if config.head_gate else None
        if config.qk_norm:
            joint = config.qk_norm_joint
            self.q_norm = RmsNorm(width if joint else config.head_dim, eps, config.norm_offset)
            self.k_norm = RmsNorm(kv_width if joint else config.head_dim, eps, config.norm_offset)

    def forward(self, x: torch.Tensor, step: Step | PackedStep, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [..., hidden] and the layer's caches as ``step`` has them -> y like x, and the new caches.

        Dense: x [b, t, hidden], keys and values [b, kv_heads, max_seq, head_dim]. Packed: x [tokens, hidden], one pool
        [2, num_blocks, block_size, kv_heads, head_dim].
        """
        config = self.config
        queries, keys, values = self._projected(x)
        q, gate = self._query(queries, step)
        if config.qk_norm_joint:
            keys = self.k_norm(keys)
        k = self._heads(keys, config.num_kv_heads, step)
        v = self._heads(values, config.num_kv_heads, step)
        if config.qk_norm and not config.qk_norm_joint:
            q, k = self.q_norm(q), self.k_norm(k)
        if config.key_multiplier != 1.0:
            k = k * config.key_multiplier
        if config.rope is not None:
            cos, sin = step.rotary(config.rope)
            q, k = (rotary_embedding(x, cos, sin, config.rope.interleaved) for x in (q, k))
        y, *new_caches = step.attend(config, q, k, v, caches, self.sinks)
        if gate is not None:
            y = y * torch.sigmoid(gate)
        if self.g_proj is not None:
            gates = torch.sigmoid(self.g_proj(x)).unsqueeze(-1)
            y = (y.unflatten(-1, (config.num_heads, config.head_dim)) * gates).flatten(-2)
        return self.o_proj(y), *new_caches

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The outputs of the query, key and value projections."""
        if not self.config.fused:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)
        width, kv_width = (n * self.config.head_dim for n in (self.config.num_heads, self.config.num_kv_heads))
        q, k, v = self.qkv_proj(x).split([width, kv_width, kv_width], dim=-1)
        return q, k, v

    def _query(self, q: torch.Tensor, step: Step | PackedStep) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries by head and, where the layer has one, the output gate [..., heads * head_dim]."""
        if self.config.qk_norm_joint:
            q = self.q_norm(q)
        if not self.config.output_gate:
            return self._heads(q, self.config.num_heads, step), None
        q, gate = q.unflatten(-1, (self.config.num_heads, 2 * self.config.head_dim)).chunk(2, dim=-1)
        return step.by_head(q), gate.flatten(-2)

    def _heads(self, x: torch.Tensor, heads: int, step: Step | PackedStep) -> torch.Tensor:
        """[..., heads * head_dim] by head, as ``step`` wants it."""
        return step.by_head(x.unflatten(-1, (heads, self.config.head_dim)))
