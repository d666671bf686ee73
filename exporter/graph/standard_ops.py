"""Torch operators that stand for one standard ONNX operator each (opset 24), with eager meaning and fakes.

torch.onnx would decompose these into many small nodes; a custom op keeps the node that both ONNX Runtime and
TensorRT have kernels for. Semantics follow the ONNX operator specifications.
"""

from __future__ import annotations

import torch

NAMESPACE = "hybridge"


@torch.library.custom_op(f"{NAMESPACE}::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNormalization over the last axis, computed in float32: x [..., d], weight [d] -> [..., d]."""
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::grouped_rms_norm", mutates_args=())
def grouped_rms_norm(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """RMSNormalization of each of ``groups`` equal parts of the last axis, no scale: x [b, t, d] -> [b, t, d]."""
    grouped = x.unflatten(-1, (groups, x.shape[-1] // groups))
    return (grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)


@grouped_rms_norm.register_fake
def _(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::rotary_embedding", mutates_args=())
def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RotaryEmbedding (halves, not interleaved): x [b, heads, t, d], cos and sin [b, t, r/2] -> [b, heads, t, d].

    Packed: x [tokens, heads, d], cos and sin [tokens, r/2]. The first r entries of each head are rotated, the rest
    pass.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@rotary_embedding.register_fake
def _(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::tensor_scatter", mutates_args=())
def tensor_scatter(past: torch.Tensor, update: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """TensorScatter, linear mode: ``update`` [b, h, t, d] replaces positions start.. of ``past`` [b, h, max_seq, d].

    ``start`` [b] int64 with start + t <= max_seq in every row.
    """
    positions = start[:, None] + torch.arange(update.shape[2], device=past.device)
    index = positions[:, None, :, None].expand_as(update)
    return past.scatter(2, index, update)


@tensor_scatter.register_fake
def _(past: torch.Tensor, update: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(past)


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention with grouped query heads: q [b, hq, t, d], k, v [b, hkv, s, d], mask [b, 1, t, s] (True: visible).

    Returns [b, hq, t, d]. hkv divides hq.
    """
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(q)


@torch.library.custom_op(f"{NAMESPACE}::mark", mutates_args=())
def mark(x: torch.Tensor, name: str) -> torch.Tensor:
    """Give ``x`` the value name ``name`` in the exported graph; the node itself disappears."""
    return x.clone()


@mark.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)
