"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a cache of latents."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.attention_config import LatentAttentionConfig
from hybridge.exporter.layers.head_products import by_head
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.rotary_embedding import rotary_embedding


class LatentAttention(nn.Module):
    """Attention whose heads share one cached row a token: the latent, then the shared part of the keys.

    The matrices that expand the latent to keys and values of each head are applied to queries and outputs instead:
    q . (W_k c) = (W_k^T q) . c, and the sum of p W_v c is W_v times the sum of p c. So a step reads rank + shared_size
    numbers of a cached token, not num_heads times a key and a value. Keys are the values too; only the latent part of
    each output is used.
    """

    def __init__(self, config: LatentAttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = c = config
        queries, latent = c.num_heads * c.query_size, c.head_dim
        if c.query_rank is None:
            self.q_proj = nn.Linear(hidden_size, queries, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden_size, c.query_rank, bias=c.bias)
            self.q_a_layernorm = RmsNorm(c.query_rank, c.norm_eps)
            self.q_b_proj = nn.Linear(c.query_rank, queries, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, latent, bias=c.bias)
        self.kv_a_layernorm = RmsNorm(c.rank, c.norm_eps)
        self.kv_b_proj = nn.Linear(c.rank, c.num_heads * (c.key_size + c.value_size), bias=False)
        if c.head_gate:
            self.g_proj = nn.Linear(hidden_size, c.num_heads, bias=False)
        self.o_proj = nn.Linear(c.num_heads * c.value_size, hidden_size, bias=c.bias)

    def forward(self, x: torch.Tensor, step: Step | PackedStep, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [..., hidden] and the layer's caches of one head, as in ``step`` -> y like x, and the new caches."""
        c = self.config
        expand = self.kv_b_proj.weight.view(c.num_heads, c.key_size + c.value_size, c.rank)
        to_key, to_value = expand.split([c.key_size, c.value_size], dim=1)
        own, shared = self._queries(x).split([c.key_size, c.shared_size], dim=-1)
        latent, shared_key = self.kv_a_proj_with_mqa(x).split([c.rank, c.shared_size], dim=-1)
        shared, shared_key = (self._rotated(step.by_head(part), step) for part in (shared, shared_key.unsqueeze(-2)))
        q = torch.cat([step.by_head(by_head(own, to_key)), shared], -1)
        k = torch.cat([step.by_head(self.kv_a_layernorm(latent).unsqueeze(-2)), shared_key], -1)
        y, *new_caches = step.attend(c, q, k, k, caches)
        attended, _ = y.unflatten(-1, (c.num_heads, c.head_dim)).split([c.rank, c.shared_size], dim=-1)
        heads = by_head(attended, to_value.transpose(1, 2))
        if c.head_gate:
            heads = heads * torch.sigmoid(self.g_proj(x).float()).to(heads.dtype).unsqueeze(-1)
        return self.o_proj(heads.flatten(-2)), *new_caches

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        """[..., num_heads, query_size]."""
        c = self.config
        q = self.q_proj(x) if c.query_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return q.unflatten(-1, (c.num_heads, c.query_size))

    def _rotated(self, x: torch.Tensor, step: Step | PackedStep) -> torch.Tensor:
        """``x`` by head. Checkpoints store the two channels of a rotation side by side, the cache in halves."""
        if self.config.rope is None:
            return x
        halves = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return rotary_embedding(halves, *step.rotary(self.config.rope), False)
