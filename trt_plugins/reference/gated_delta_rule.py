"""Eager ``gated_delta_rule``: the gated delta rule as a scan over chunks.

Source of the chunked form: "Gated Delta Networks" (arXiv 2412.06464), section 3.3, and, for one decay per key channel,
"Kimi Linear" (arXiv 2510.26692). The tokens of a chunk depend on each other through a unit lower triangular system,
which is solved by substitution: a series of powers of the matrix would cancel where keys resemble each other. Decays
inside a chunk are exponentials of segment sums, never quotients of long running products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype

NORM_EPSILON = 1e-6
# Tokens of a chunk with one decay per key channel: the segment decays of a head are tokens x tokens x key_size.
CHANNEL_CHUNK = 32


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    context_lengths: Tensor,
    decay: str,
    use_qk_l2norm: int,
    scale: float,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Gated delta rule of one call, prefill or decode.

    Args:
        q, k: [batch, time, key_heads, key_size]; without the time axis for one token per row, and so v, g and beta.
        v: [batch, time, value_heads, value_size]. g: [batch, time, value_heads, decay_size], float32.
        beta: [batch, time, value_heads]. state: [batch, value_heads, key_size, value_size].
        context_lengths: [batch] int32.
        decay: "head" (decay_size 1) or "key_channel" (decay_size key_size).
        use_qk_l2norm, scale: see the operator's declaration. chunk_size: most tokens handled as one matrix.

    Returns:
        o like v, zero at padding; state_out like state, bit-identical for rows of length 0.
    """
    if q.ndim == 3:
        q, k, v, g, beta = (tensor.unsqueeze(1) for tensor in (q, k, v, g, beta))
        o, state = gated_delta_rule(q, k, v, g, beta, state, context_lengths, decay, use_qk_l2norm, scale, chunk_size)
        return o.squeeze(1), state
    work, ratio = work_dtype(v), v.shape[2] // q.shape[2]
    lengths = clamped_lengths(context_lengths, v.shape[1])
    valid = valid_tokens(lengths, v.shape[1])[:, :, None, None]
    queries, keys = (
        _by_head(_normed(tensor.to(work), use_qk_l2norm), valid).repeat_interleave(ratio, 1) for tensor in (q, k)
    )
    queries = queries * (scale or q.shape[-1] ** -0.5)
    values, decays, strengths = (_by_head(tensor.to(work), valid) for tensor in (v, g, beta.unsqueeze(-1)))
    o, last = _scan(
        queries,
        keys,
        values,
        decays,
        strengths,
        state.to(work),
        chunk_size if decay == "head" else min(chunk_size, CHANNEL_CHUNK),
    )
    last = torch.where(lengths[:, None, None, None] > 0, last.to(state.dtype), state)
    return o.transpose(1, 2).masked_fill(~valid, 0.0).to(v.dtype).contiguous(), last


def _normed(tensor: Tensor, use_qk_l2norm: int) -> Tensor:
    return tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + NORM_EPSILON) if use_qk_l2norm else tensor


def _by_head(tensor: Tensor, valid: Tensor) -> Tensor:
    """[batch, time, heads, size] as [batch, heads, time, size], zero at padding."""
    return tensor.masked_fill(~valid, 0.0).transpose(1, 2)


def _scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Chunks in sequence, the tokens of a chunk in parallel.

    Shapes, with b batch, h value heads, t time: q and k [b, h, t, key_size], v [b, h, t, value_size],
    g [b, h, t, decay_size], beta [b, h, t, 1], state [b, h, key_size, value_size]. Returns o like v, the last state.
    """
    o = torch.empty_like(v)
    for start in range(0, v.shape[2], chunk):
        part = (slice(None), slice(None), slice(start, start + chunk))
        o[part], state = _scan_chunk(q[part], k[part], v[part], g[part], beta[part], state)
    return o, state


def _scan_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk; token i reads what tokens j <= i wrote: u_i = beta_i (v_i - k_i S), S as it is before token i."""
    segment = _segment_decay(g)  # [b, h, i, j, decay_size]
    from_start = g.cumsum(2).exp()
    similar = beta * _decayed_products(k, k, segment).tril(-1)
    target = beta * (v - (k * from_start) @ state)
    u = torch.linalg.solve_triangular(similar, target, upper=False, unitriangular=True)
    o = (q * from_start) @ state + _decayed_products(q, k, segment).tril() @ u
    to_end = segment[:, :, -1]  # [b, h, j, decay_size]
    return o, state * from_start[:, :, -1].unsqueeze(-1) + (k * to_end).transpose(2, 3) @ u


def _segment_decay(g: Tensor) -> Tensor:
    """exp(g[j+1] + ... + g[i]) for j <= i and 1 above, from g [b, h, t, d] to [b, h, i, j, d]."""
    time = g.shape[2]
    later = torch.ones(time, time, dtype=torch.bool, device=g.device).tril(-1)  # row after column
    return g.unsqueeze(3).masked_fill(~later.unsqueeze(-1), 0.0).cumsum(2).exp()


def _decayed_products(a: Tensor, b: Tensor, segment: Tensor) -> Tensor:
    """sum over channels of a_i * b_j * segment_ij, [b, h, i, j]; meaningful for j <= i."""
    if segment.shape[-1] == 1:
        return (a @ b.transpose(2, 3)) * segment.squeeze(-1)
    return torch.einsum("bhic,bhjc,bhijc->bhij", a, b, segment)
