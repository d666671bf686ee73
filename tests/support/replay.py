"""Replay: what draft tokens write to a recurrent state, kept apart from it until some of them are accepted.

Both recurrences are S = exp(g[t]) * S + outer(left[t], right[t]) once their own terms are known: for Mamba2 g = A * d,
left = d * x and right = B (arXiv 2405.21060), for the gated delta rule left = k and right = u, the written difference
(arXiv 2412.06464). So a check of draft tokens may leave the state as it is and keep these factors, a few per cent of a
state a token, and one operation advances either state by the accepted tokens. A convolution's factors are its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.gated_delta_rule import NORM_EPSILON
from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype


@dataclass(frozen=True)
class ReplayFactors:
    """Updates of states [batch, heads, rows, columns] by tokens.

    log_decay: [batch, time, heads, 1], or [..., rows] for one decay per row of the state, at most 0.
    left: [batch, time, heads or groups of them, rows]. right: [batch, time, heads or groups of them, columns].
    """

    log_decay: Tensor
    left: Tensor
    right: Tensor

    @property
    def numbers_of_token(self) -> int:
        """Numbers per token and batch row."""
        return sum(tensor[0, 0].numel() for tensor in (self.log_decay, self.left, self.right))


def ssm_factors(x: Tensor, A: Tensor, B: Tensor, step: Tensor) -> ReplayFactors:
    """Of update_ssm_state: x [b, t, heads, head_dim], A [heads], B [b, t, groups, state_size], and the time step
    [b, t, heads] after bias, softplus and clamp."""
    work = work_dtype(x)
    steps = step.to(work).unsqueeze(-1)
    return ReplayFactors(steps * A.to(work)[:, None], steps * x.to(work), B.to(work))


def delta_factors(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, use_qk_l2norm: int) -> ReplayFactors:
    """Of gated_delta_rule, one token after the other from ``state`` [b, value_heads, key_size, value_size].

    k [b, t, key_heads, key_size], v [b, t, value_heads, value_size], g [b, t, value_heads, decay_size], beta
    [b, t, value_heads].
    """
    work = work_dtype(v)
    keys, decays = k.to(work), g.to(work)
    if use_qk_l2norm:
        keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + NORM_EPSILON)
    own_keys = keys.repeat_interleave(v.shape[2] // k.shape[2], 2)
    carried, written = state.to(work), torch.empty_like(v, dtype=work)
    for t in range(v.shape[1]):
        carried = carried * decays[:, t].exp().unsqueeze(-1)
        read = torch.einsum("bhn,bhnm->bhm", own_keys[:, t], carried)
        written[:, t] = beta[:, t].to(work).unsqueeze(-1) * (v[:, t].to(work) - read)
        carried = carried + own_keys[:, t].unsqueeze(-1) * written[:, t].unsqueeze(-2)
    return ReplayFactors(decays, keys, written)


def advance_states(state: Tensor, factors: ReplayFactors, accepted: Tensor) -> Tensor:
    """``state`` [batch, heads, rows, columns] after the first ``accepted`` [batch] int32 tokens of ``factors``.

    accepted is clamped to 0..time; a row with 0 keeps its state bit for bit, and what lies at tokens that are not
    accepted, NaN included, reaches no state.
    """
    time, heads = factors.log_decay.shape[1], state.shape[1]
    work = factors.left.dtype
    lengths = clamped_lengths(accepted, time)
    valid = valid_tokens(lengths, time)[:, :, None, None]
    decays, left, right = (
        tensor.masked_fill(~valid, 0.0).repeat_interleave(heads // tensor.shape[2], 2)
        for tensor in (factors.log_decay, factors.left, factors.right)
    )
    # Sums from behind each token to the last accepted one, and never differences of such sums.
    later = torch.cat([decays[:, 1:], torch.zeros_like(decays[:, :1])], dim=1)
    to_end = later.flip(1).cumsum(1).flip(1)
    total = decays.sum(1).exp().unsqueeze(-1)
    after = total * state.to(work) + torch.einsum("bthr,bthc->bhrc", to_end.exp() * left, right)
    return torch.where(lengths[:, None, None, None] > 0, after.to(state.dtype), state)
