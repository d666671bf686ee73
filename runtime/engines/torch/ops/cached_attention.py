"""Attention over KV caches that are updated where they are."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F

from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.lengths import StepLengths
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.packed_kernel import PackedKernel
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.reference.cached_attention import attention_with_sinks

# Heads that torch's fast kernels take.
_WIDEST_OF_TORCH = 256


class StepCache:
    """Cache access of the layers of one window in one step; shared values are computed once.

    context, past: [batch] int32 on the device; lengths: the same in host memory. window: positions that a token sees
    with its own, 0 for all.
    """

    def __init__(self, context: torch.Tensor, past: torch.Tensor, lengths: StepLengths, window: int) -> None:
        self._context, self._past, self.lengths, self.window = context, past, lengths, window

    @property
    def is_decode(self) -> bool:
        """Whether a row has at most one token. Then nothing depends on host memory but the bucket."""
        return self.lengths.tokens == 1

    @property
    def is_causal(self) -> bool:
        """Whether the step's own keys are all that its tokens see, up to their own."""
        tokens = self.lengths.tokens
        return not self.is_decode and self.lengths.start_together and (not self.window or tokens <= self.window)

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
        return visible & (key > query[:, None, :, None] - self.window) if self.window else visible

    @cached_property
    def slots(self) -> torch.Tensor:
        """[batch, 1, 1, 1] int64: where a decoded token goes; a row without one may have no room for more."""
        return self._past.long().clamp(max=self.lengths.bucket - 1)[:, None, None, None]

    @cached_property
    def takes_part(self) -> torch.Tensor:
        """[batch, 1, 1, 1] bool."""
        return (self._context > 0)[:, None, None, None]

    @cached_property
    def padding(self) -> torch.Tensor:
        """[batch, 1, tokens, 1] bool: the tokens of no row."""
        tokens = torch.arange(self.lengths.tokens, device=self._context.device, dtype=torch.int32)
        return (tokens >= self._context[:, None])[:, None, :, None]

    def write_both(self, keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put k and v into the caches, which may be one."""
        self.write(keys, k)
        if values is not keys:
            self.write(values, v)

    def write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        """Put the valid tokens of ``new`` [batch, heads, tokens, size] at their positions of ``cache``."""
        if self.is_decode:
            index = self.slots.expand(-1, cache.shape[1], 1, cache.shape[3])
            cache.scatter_(2, index, torch.where(self.takes_part, new, cache.gather(2, index)))
        elif self.lengths.is_padded:
            # Where padding goes no row has a token yet: zeros, as in new caches.
            end = self.end
            cache[:, :, end - self.lengths.tokens : end].copy_(new.masked_fill(self.padding, 0))
        elif self.lengths.start_together and self.lengths.fill_the_step:
            cache[:, :, : self.lengths.tokens].copy_(new)
        else:
            for row, (count, past) in enumerate(zip(self.lengths.context, self.lengths.past, strict=True)):
                cache[row, :, past : past + count].copy_(new[row, :, :count])


class PagedCaches:
    """Attention by the kernels of paged attention, to which the caches are blocks of their own rows."""

    def __init__(self, scale: float, kernels: KernelRunner | None) -> None:
        self._scale, self._runner = scale, kernels
        self._write = PackedKernel(PACKED_OPS["reshape_and_cache"], {}, kernels)
        self._attend: dict[int, PackedKernel] = {}  # by window

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
        step: StepCache,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """y [batch, heads, tokens, size], after the caches have taken k and v; None where no kernel runs.

        The padding of a row is attended like tokens that follow it: what comes out there is of no use.
        """
        blocks = step.lengths.blocks
        if self._runner is None or blocks is None:
            return None
        batch, heads, tokens, size = q.shape
        pool, query = blocks.pool(past_key, past_value), q.transpose(1, 2).reshape(-1, heads, size)
        y = torch.empty(query.shape, dtype=q.dtype, device=q.device)
        given = [query, pool, blocks.table, blocks.bounds, blocks.lengths, sinks]
        rows, attend = PackedRows(batch, tokens, has_state_indices=False), self._of_window(step.window)
        if not attend.accepts(given, [y], rows):
            return None
        if blocks.slots is None:
            step.write_both(past_key, past_value, k, v)
        elif not self._write.launch([k[:, :, 0], v[:, :, 0], pool, blocks.slots], [pool]):
            return None
        attend.launch(given, [y], rows)
        return y.view(batch, tokens, heads, size).transpose(1, 2)

    def _of_window(self, window: int) -> PackedKernel:
        if window not in self._attend:
            spec = PACKED_OPS["paged_attention"]
            attributes = spec.complete_attributes({"scale": self._scale, "sliding_window": window})
            self._attend[window] = PackedKernel(spec, attributes, self._runner)
        return self._attend[window]


def _step_cache(context: NodeContext) -> Run:
    window = context.attributes.take("window")
    return lambda new, past, lengths: StepCache(new, past, lengths, window)


def _cached_latent_attention(context: NodeContext) -> Run:
    attend = _cached_attention(context)
    return lambda q, k, past, step: attend(q, k, k, past, past, step)[:2]


def _cached_attention(context: NodeContext) -> Run:
    scale = context.attributes.take("scale")
    kernels = PagedCaches(scale, context.kernels)

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
        step: StepCache,
        sinks: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # torch makes a plan for each shape, which takes longer than its attention saves unless the shape comes again.
        plain = step.is_causal and step.lengths.is_padded and sinks is None and q.shape[-1] <= _WIDEST_OF_TORCH
        y = None if plain else kernels(q, k, v, past_key, past_value, step, sinks)
        if y is not None:
            return y, past_key, past_value
        step.write_both(past_key, past_value, k, v)
        if sinks is not None:
            keys, values = past_key[:, :, : step.end], past_value[:, :, : step.end]
            y = attention_with_sinks(q, keys, values, step.visible, sinks, scale)
        elif step.is_causal:
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
    "CachedLatentAttention": _cached_latent_attention,
    "LastToken": _last_token,
    "StepCache": _step_cache,
}
