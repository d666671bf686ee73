"""Compressed convolutional attention around the operator causal_conv1d (arXiv 2510.04476)."""

from __future__ import annotations

from functools import reduce

import torch
from torch import nn
from torch.nn import functional as F

from hybridge.exporter.families.attention_config import ConvolutionalAttentionConfig
from hybridge.exporter.layers.head_products import by_head
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.grouped_rms_norm import grouped_rms_norm
from hybridge.exporter.ops.rotary_embedding import rotary_embedding

# transformers divides by the length of a head's vector, which it takes to be at least about 1e-7.
NORM_EPS = 1e-16


class Convolution(nn.Module):
    """The parameters of one convolution: weight [channels, columns, kernel], bias [channels]."""

    def __init__(self, channels: int, columns: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, columns, kernel))
        self.bias = nn.Parameter(torch.empty(channels))


class ConvolvedProjections(nn.Module):
    """Queries, keys and values of tokens, from these and from a few tokens before.

    Both convolutions together are one of ``conv_kernel`` taps. Each tap of the second reads the first at another
    token: the operator computes the first once for each of these, with its taps shifted, and the second is a product
    by matrices of each head. The values' delay is a third shift.
    """

    def __init__(self, config: ConvolutionalAttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = c = config
        self.q_proj = nn.Linear(hidden_size, c.num_heads * c.head_dim, bias=c.bias)
        self.k_proj = nn.Linear(hidden_size, c.num_kv_heads * c.head_dim, bias=c.bias)
        self.v_proj_current = nn.Linear(hidden_size, c.delayed_width, bias=c.bias)
        self.v_proj_delayed = nn.Linear(hidden_size, c.delayed_width, bias=c.bias)
        self.conv_qk_depthwise = Convolution(c.width, 1, c.depthwise_kernel)
        self.conv_qk_grouped = Convolution(c.width, c.head_dim, c.grouped_kernel)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, conv_state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [..., hidden] -> q [..., heads, head_dim], k and v [..., kv_heads, head_dim], and the new state."""
        c = self.config
        q, k = self.q_proj(x), self.k_proj(x)
        joined = torch.cat([q, k], dim=-1)
        # The bias of the delayed values is added behind the delay: the first token of a sequence gets it too.
        inputs = torch.cat([joined] * c.grouped_kernel + [F.linear(x, self.v_proj_delayed.weight)], dim=-1)
        weight, bias = self._taps()
        mixed, conv_state_out = step.recurrent("causal_conv1d", (inputs, weight, bias, conv_state), ("none",))
        *taps, delayed = mixed.split([c.width] * c.grouped_kernel + [c.delayed_width], dim=-1)
        heads = c.num_heads + c.num_kv_heads
        by_tap = torch.cat([tap.unflatten(-1, (heads, c.head_dim)) for tap in taps], dim=-1)
        convolved = by_head(by_tap, self._head_matrices()).flatten(-2) + self.conv_qk_grouped.bias
        convolved_q, convolved_k = convolved.split([q.shape[-1], k.shape[-1]], dim=-1)
        mean_q, mean_k = self._means(q, k)
        values = torch.cat([self.v_proj_current(x), delayed], dim=-1)
        return (
            convolved_q.unflatten(-1, (c.num_heads, c.head_dim)) + mean_q,
            convolved_k.unflatten(-1, (c.num_kv_heads, c.head_dim)) + mean_k,
            values.unflatten(-1, (c.num_kv_heads, c.head_dim)),
            conv_state_out,
        )

    def _means(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each query and its key [..., heads, head_dim]; and of each key and its queries' mean."""
        c = self.config
        group = c.num_heads // c.num_kv_heads
        queries = q.unflatten(-1, (c.num_kv_heads, group, c.head_dim))
        both = (queries + k.unflatten(-1, (c.num_kv_heads, 1, c.head_dim))) * 0.5
        total = reduce(torch.add, _single(both, group, -2))
        return both.flatten(-3, -2), total.flatten(-3, -2) * (1.0 / group)

    def _taps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [channels, 1, conv_kernel] and bias [channels] of the operator."""
        c, first = self.config, self.conv_qk_depthwise
        column = _single(first.weight, c.depthwise_kernel, -1)[0] * 0.0  # [width, 1, 1]
        copies = []
        for delay in range(c.grouped_kernel - 1, -1, -1):
            before = c.conv_kernel - c.depthwise_kernel - delay
            copies.append(torch.cat([column] * before + [first.weight] + [column] * delay, dim=-1))
        none, _ = column.split([c.delayed_width, c.width - c.delayed_width], dim=0)
        copies.append(torch.cat([none] * (c.conv_kernel - 2) + [none + 1.0, none], dim=-1))
        delayed = self.v_proj_delayed.bias
        biases: list[torch.Tensor] = [first.bias] * c.grouped_kernel
        biases.append(none.flatten() if delayed is None else delayed)
        return torch.cat(copies, dim=0), torch.cat(biases, dim=0)

    def _head_matrices(self) -> torch.Tensor:
        """The second convolution as matrices [heads, taps * head_dim, head_dim]."""
        c = self.config
        weight = self.conv_qk_grouped.weight.view(-1, c.head_dim, c.head_dim, c.grouped_kernel)
        return weight.transpose(1, 3).flatten(1, 2)


class HeadNorm(nn.Module):
    """Queries and keys to the length sqrt(head_dim); keys are then multiplied by a number of their head."""

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.temp = nn.Parameter(torch.empty(kv_heads))

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [..., heads, head_dim], k [..., kv_heads, head_dim] -> the same."""
        return _normed(q), _normed(k) * self.temp.unsqueeze(-1)


class ConvolutionalAttention(nn.Module):
    """Convolved projections, norms of heads, rotary embedding, cache update, attention, output projection."""

    def __init__(self, config: ConvolutionalAttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.qkv_proj = ConvolvedProjections(config, hidden_size)
        self.qk_norm = HeadNorm(config.num_kv_heads)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden_size, bias=config.bias)

    def forward(self, x: torch.Tensor, step: Step | PackedStep, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [..., hidden]; the layer's caches as ``step`` has them, then conv_state [b, channels, conv_kernel] -> y
        like x, and the new states."""
        c, (*caches, conv_state) = self.config, states
        q, k, v, conv_state_out = self.qkv_proj(x, step, conv_state)
        q, k = (step.by_head(part) for part in self.qk_norm(q, k))
        if c.rope is not None:
            cos, sin = step.rotary(c.rope)
            q, k = (rotary_embedding(part, cos, sin, c.rope.interleaved) for part in (q, k))
        y, *new_caches = step.attend(c, q, k, step.by_head(v), caches)
        return self.o_proj(y), *new_caches, conv_state_out


def _single(x: torch.Tensor, count: int, dim: int) -> tuple[torch.Tensor, ...]:
    """Each of the ``count`` elements of an axis; a graph has no split into one part."""
    return (x,) if count == 1 else tuple(x.split([1] * count, dim=dim))


def _normed(x: torch.Tensor) -> torch.Tensor:
    heads = x.shape[-2]
    flat = grouped_rms_norm(x.float().flatten(-2), heads, NORM_EPS)
    return flat.unflatten(-1, (heads, x.shape[-1])).to(x.dtype)
