"""RotaryEmbedding."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::rotary_embedding", mutates_args=())
def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """RotaryEmbedding of halves or, interleaved, of neighbours: x [b, heads, t, d], cos and sin [b, t, r/2] -> like x.

    Packed: x [tokens, heads, d], cos and sin [tokens, r/2]. The first r entries of each head are rotated, the rest
    pass.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    pair = first * cos - second * sin, second * cos + first * sin
    return torch.cat((torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest), dim=-1)


@rotary_embedding.register_fake
def _fake(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    return torch.empty_like(x)


def to_onnx(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    rotary_dim = 2 * int(cos.shape[-1])
    attributes = {"interleaved": int(interleaved)}
    if rotary_dim != int(x.shape[-1]):
        # The axis of x says how many heads there are; ONNX Runtime 1.23 wants to read it all the same.
        attributes |= {"rotary_embedding_dim": rotary_dim, "num_heads": int(x.shape[1])}
    if len(x.shape) == 4:
        return op.RotaryEmbedding(x, cos, sin, **attributes)
    # Every packed token is a batch entry of one token.
    time, before = op.Constant(value_ints=[2]), op.Constant(value_ints=[1])
    x, cos, sin = op.Unsqueeze(x, time), op.Unsqueeze(cos, before), op.Unsqueeze(sin, before)
    return op.Squeeze(op.RotaryEmbedding(x, cos, sin, **attributes), time)
