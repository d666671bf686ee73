"""ROTARY_EMBEDDING: rotates pairs of a head's numbers by the angle of their position."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def rotary_embedding(call: LayerCall) -> Tensor:
    """``x`` [batch, heads, seq, size], of which the first ``rotary_embedding_dim`` (0: all) of each head are rotated.

    Cosines and sines [batch, seq, pairs], or [positions, pairs] with the positions [batch, seq] as input 3. A pair is
    two neighbours (interleaved), or the same position in the first and the second half.
    """
    x, cos, sin = (call.wide(index) for index in range(3))
    positions = call.optional(3)
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    width = call["rotary_embedding_dim"] or x.shape[-1]
    rotated, rest = x[..., :width], x[..., width:]
    interleaved = call["interleaved"]
    pairs = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
    first, second = pairs[0] * cos - pairs[1] * sin, pairs[0] * sin + pairs[1] * cos
    joined = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([joined, rest], -1)
