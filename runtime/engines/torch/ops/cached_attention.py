"""Attention over KV caches that are updated where they are."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F

from runtime.engines.torch.lengths import StepLengths
from runtime.engines.torch.node_context import Builder, NodeContext, Run


class StepCache:
    """How the layers of one window write and read their caches in one step; what they share is computed once.

    context, past: [batch] int32 on the device; lengths: the same in host memory. window: positions that a token sees
    with its own, 0 for all.
    """

    def __init__(self, context: torch.Tensor, past: torch.Tensor, lengths: StepLengths, window: int) -> None:
        self._context, self._past, self.lengths, self._window = context, past, lengths, window

    @property
    def is_decode(self) -> bool:
        """Whether a row has at most one token. Then nothing depends on host memory but the bucket."""
        return self.lengths.tokens == 1

    @property
    def is_causal(self) -> bool:
        """Whether the step's own keys are all that its tokens see, up to their own."""
        tokens = self.lengths.tokens
        return not self.is_decode and self.lengths.start_together and (not self._window or tokens <= self._window)

    @property
    def end(self) -> int:
        """Positions of the caches that the step may read."""
        if self.is_decode:
            return self.lengths.bucket
        return max(p + c for p, c in zip(self.lengths.past, self.lengths.context, strict=True))

    @cached_property
    def visible(self) -> torch.Tensor:
        """[batch, 1, tokens, end] bool."""
        device = self._past.device
        query = self._past[:, None] + torch.arange(self.lengths.tokens, device=device, dtype=torch.int32)
        key = torch.arange(self.end, device=device, dtype=torch.int32)
        visible = key <= query[:, None, :, None]
        return visible & (key > query[:, None, :, None] - self._window) if self._window else visible

    @cached_property
    def slots(self) -> torch.Tensor:
        """[batch, 1, 1, 1] int64: where a decoded token goes; a row without one may have no room for more."""
        return self._past.long().clamp(max=self.lengths.bucket - 1)[:, None, None, None]

    @cached_property
    def takes_part(self) -> torch.Tensor:
        """[batch, 1, 1, 1] bool."""
        return (self._context > 0)[:, None, None, None]

    def write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        """Put the valid tokens of ``new`` [batch, heads, tokens, size] at their positions of ``cache``."""
        if self.is_decode:
            index = self.slots.expand(-1, cache.shape[1], 1, cache.shape[3])
            cache.scatter_(2, index, torch.where(self.takes_part, new, cache.gather(2, index)))
        elif self.lengths.start_together and self.lengths.fill_the_step:
            cache[:, :, : self.lengths.tokens].copy_(new)
        else:
            for row, (count, past) in enumerate(zip(self.lengths.context, self.lengths.past, strict=True)):
                cache[row, :, past : past + count].copy_(new[row, :, :count])


def _step_cache(context: NodeContext) -> Run:
    window = context.attributes.take("window")
    return lambda new, past, lengths: StepCache(new, past, lengths, window)


def _cached_attention(context: NodeContext) -> Run:
    scale = context.attributes.take("scale")

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
        step: StepCache,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        step.write(past_key, k)
        step.write(past_value, v)
        if step.is_causal:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        else:
            keys, values = past_key[:, :, : step.end], past_value[:, :, : step.end]
            y = _decoded(q, keys, values, step, scale) if step.is_decode else _masked(q, keys, values, step, scale)
        return y, past_key, past_value

    return run


def _decoded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepCache, scale: float) -> torch.Tensor:
    """One token a row: the queries that share a key head take the place of tokens, so that keys are read once."""
    grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=step.visible, scale=scale).reshape(q.shape)


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepCache, scale: float) -> torch.Tensor:
    # torch's fast kernels take a mask or groups of query heads, not both.
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=step.visible, scale=scale)


def _last_token(context: NodeContext) -> Run:
    def run(x: torch.Tensor, lengths: torch.Tensor, known: StepLengths) -> torch.Tensor:
        """x [batch, tokens, ...] -> [batch, ...]."""
        if known.tokens == 1 or known.fill_the_step:
            return x[:, -1]
        return x[torch.arange(x.shape[0], device=x.device), lengths.long().clamp(min=1) - 1]

    return run


ROWS: dict[str, Builder] = {
    "CachedAttention": _cached_attention,
    "LastToken": _last_token,
    "StepCache": _step_cache,
}
