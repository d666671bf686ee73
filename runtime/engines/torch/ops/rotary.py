"""Rotary embedding."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate halves of the first r entries of each head: x [b, h, t, d], cos and sin [b, t, r / 2]."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def neighbours_rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As ``rotated``, of pairs of neighbours."""
    turned, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    first, second = turned[..., ::2], turned[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    return torch.cat((pairs, rest), -1)


def _rotary_embedding(context: NodeContext) -> Run:
    interleaved = context.attributes.take("interleaved", 0)
    # The tables have the width of what is rotated, and an axis of x is the heads.
    context.attributes.take("rotary_embedding_dim", 0)
    context.attributes.take("num_heads", 0)
    return neighbours_rotated if interleaved else rotated


def _rotary_tables(context: NodeContext) -> Run:
    def run(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]

    return run


def _rotate(context: NodeContext) -> Run:
    def run(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        width = cos.shape[-1]
        turned = x[..., :width]
        y = torch.addcmul(turned * cos, turned.roll(width // 2, -1), sin)
        return y if width == x.shape[-1] else torch.cat((y, x[..., width:]), -1)

    return run


FUSED_ROWS: dict[str, Builder] = {"Rotate": _rotate, "RotaryTables": _rotary_tables}
ROWS: dict[str, Builder] = {"RotaryEmbedding": _rotary_embedding}
