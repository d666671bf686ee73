"""The gated delta rule and its convolution in forms that train fast on a GPU: parallel over chunks, plain products.

transformers' PyTorch path copies whole tensors for every chunk and solves a triangular system in place of a product.
Formulas: "Gated Delta Networks" (arXiv 2412.06464), section 3.3, with the state after a chunk as an affine map of the
state before it. Every function has the arguments of transformers' function of the same name that training gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPSILON = 1e-6


@contextmanager
def parallel_chunks() -> Iterator[None]:
    """Within it, Qwen3-Next models of transformers compute in the forms of this module."""
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    ours = {"torch_chunk_gated_delta_rule": chunk_gated_delta_rule, "causal_conv1d_fn": causal_conv1d_fn}
    theirs = {name: getattr(modeling, name) for name in ours}
    try:
        for name, function in ours.items():
            setattr(modeling, name, function)
        yield
    finally:
        for name, function in theirs.items():
            setattr(modeling, name, function)


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: None = None, activation: str = "silu", **_: Any) -> Tensor:
    """silu of the causal convolution of x [batch, channels, time] by weight [channels, width], shift by shift."""
    time, width = x.shape[2], weight.shape[1]
    padded = F.pad(x, (width - 1, 0))
    return F.silu(reduce(torch.add, (padded[:, :, i : i + time] * weight[:, i, None] for i in range(width))))


def chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, chunk_size: int = 64, **_: Any
) -> tuple[Tensor, None]:
    """query, key [batch, time, key heads, size], value [batch, time, heads, size], g, beta [batch, time, heads].

    Returns the output like value, from a state of zeros; no state is returned.
    """
    time, ratio, scale = value.shape[1], value.shape[2] // key.shape[2], key.shape[-1] ** -0.5
    q, k = (_normed(tensor).repeat_interleave(ratio, 2) for tensor in (query, key))
    q, k, v, decays, strengths = (
        _chunks(tensor, chunk_size) for tensor in (q * scale, k, value, g.unsqueeze(-1), beta.unsqueeze(-1))
    )
    total = decays.cumsum(-2)  # log of the decay from the start of the chunk, [batch, heads, chunks, chunk, 1]
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=v.device).triu(1)
    between = (total - total.transpose(-1, -2)).masked_fill(later, float("-inf")).exp()
    strong = k * strengths
    solved = inverse_of_unit_triangle((strong @ k.transpose(-1, -2) * between).tril(-1))
    written, read = solved @ (v * strengths), solved @ (strong * total.exp())
    kept = (k * (total[..., -1:, :] - total).exp()).transpose(-1, -2)
    states = _states(total[..., -1:, :].exp(), kept, written, read)
    fresh = written - read @ states
    o = (q * total.exp()) @ states + (q @ k.transpose(-1, -2) * between) @ fresh
    return o.flatten(2, 3)[:, :, :time].transpose(1, 2), None


def inverse_of_unit_triangle(lower: Tensor) -> Tensor:
    """(I + lower)^-1 for strictly lower triangular matrices [..., size, size]; size is a power of two.

    Blocks along the diagonal are inverted two by two: [[a, 0], [c, b]]^-1 = [[a', 0], [-b' c a', b']]. The last step,
    which changes no value, carries the gradient.
    """
    size, precision = lower.shape[-1], torch.get_float32_matmul_precision()
    identity = torch.eye(size, dtype=lower.dtype, device=lower.device)
    index = torch.arange(size, device=lower.device)
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            inverse, block = identity, 1
            while block < size:
                place = index // block
                corner = (place[:, None] % 2 == 1) & (place[None] == place[:, None] - 1)
                inverse = inverse - inverse @ (lower * corner) @ inverse
                block *= 2
        return 2 * inverse - inverse @ (identity + lower) @ inverse
    finally:
        torch.set_float32_matmul_precision(precision)


def _states(decay: Tensor, kept: Tensor, written: Tensor, read: Tensor) -> Tensor:
    """The state before every chunk [batch, heads, chunks, key size, value size]."""
    identity = torch.eye(kept.shape[-2], dtype=kept.dtype, device=kept.device)
    maps, sums = decay * identity - kept @ read, kept @ written
    state, states = torch.zeros_like(sums[:, :, 0]).flatten(0, 1), []
    for factor, summand in zip(maps.flatten(0, 1).unbind(1), sums.flatten(0, 1).unbind(1), strict=True):
        states.append(state)
        state = torch.baddbmm(summand, factor, state)
    return torch.stack(states, 1).unflatten(0, sums.shape[:2])


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[batch, time, heads, size] as [batch, heads, chunks, chunk, size], zeros after the end."""
    return F.pad(x.transpose(1, 2), (0, 0, 0, -x.shape[1] % chunk)).unflatten(2, (-1, chunk))
