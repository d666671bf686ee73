"""Shared by all layers of one dense step: cache positions and rotary tables, each computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hybridge.exporter.families.attention_config import CachedConfig, RopeConfig
from hybridge.exporter.ops.at_start import at_start
from hybridge.exporter.ops.rotary_tables import rotary_tables


@dataclass
class Step:
    """One call of the graph: input_ids [batch, seq] int64, context_lengths and past_lengths [batch] int32.

    frequencies: inv_freq [rotary_dim / 2] of each rotary embedding.
    """

    input_ids: torch.Tensor
    context_lengths: torch.Tensor
    past_lengths: torch.Tensor
    dtype: torch.dtype
    frequencies: Mapping[RopeConfig, torch.Tensor]
    # Of the tokens, [batch, seq, hidden], as the first layer gets them.
    embeddings: torch.Tensor = field(init=False)
    # Of the tokens, float32 [..., router_size]: what the router of the next layer adds, where it adds some.
    router_states: torch.Tensor | None = field(default=None, init=False)
    # What attention_step says, by sliding window and shape of the cache.
    _in_caches: dict[tuple[int | None, int, int], tuple[torch.Tensor, ...]] = field(default_factory=dict)
    _at_start: torch.Tensor | None = None
    _rotary: dict[RopeConfig, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def recurrent(
        self, op: str, inputs: Sequence[torch.Tensor | None], attributes: Sequence[object]
    ) -> tuple[torch.Tensor, ...]:
        """The operator ``op`` of the domain trt_edgellm on this step's rows; ``inputs`` without those about rows."""
        return getattr(torch.ops.trt_edgellm, op).default(*inputs, self.context_lengths, *attributes)

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """[b, t, heads, head_dim] -> [b, heads, t, head_dim], as this step's attention takes it."""
        return x.transpose(1, 2)

    def attend(
        self,
        config: CachedConfig,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        caches: Sequence[torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Attention over ``caches`` and the new tokens [b, heads, t, head_dim] -> y [b, t, width], new caches.

        caches: of keys and of values, or one where keys are the values. sinks: scores [heads] float32 of the heads'
        attention sinks, where they have any.
        """
        ops = torch.ops.trt_edgellm
        window, kind = config.sliding_window or 0, (config.sliding_window, config.num_kv_heads, config.head_dim)
        if kind not in self._in_caches:
            lengths = (self.context_lengths, self.past_lengths)
            self._in_caches[kind] = ops.attention_step.default(self.input_ids, *lengths, caches[0], window)
        place = self._in_caches[kind]
        if config.kv.parts == 1:
            y, *new_caches = ops.cached_latent_attention.default(q, k, *caches, *place, config.scale)
        else:
            y, *new_caches = ops.cached_attention.default(q, k, v, *caches, *place, sinks, config.scale)
        return y.transpose(1, 2).flatten(2), *new_caches

    def at_start(self) -> torch.Tensor:
        """bool [batch, seq, 1]: whether a token is the first of its sequence."""
        if self._at_start is None:
            self._at_start = at_start(self.input_ids, self.past_lengths)
        return self._at_start

    def rotary(self, rope: RopeConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [batch, seq, rotary_dim / 2] in the compute type."""
        if rope not in self._rotary:
            self._rotary[rope] = rotary_tables(
                self.input_ids, self.past_lengths, self.frequencies[rope], rope.attention_scaling, self.dtype
            )
        return self._rotary[rope]
