"""What all layers of one dense step share: cache slots, masks and rotary tables, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hybridge.exporter.families.decoder_config import AttentionConfig, RopeConfig
from hybridge.exporter.ops.attention import attention
from hybridge.exporter.ops.attention_mask import attention_mask
from hybridge.exporter.ops.cache_slots import cache_slots
from hybridge.exporter.ops.rotary_tables import rotary_tables
from hybridge.exporter.ops.tensor_scatter import tensor_scatter


@dataclass
class Step:
    """One call of the graph: input_ids [batch, seq] int64, context_lengths and past_lengths [batch] int32.

    ``cache`` is any KV cache input (it gives max_seq), None for a model without attention.
    """

    input_ids: torch.Tensor
    context_lengths: torch.Tensor
    past_lengths: torch.Tensor
    cache: torch.Tensor | None
    dtype: torch.dtype
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    _rotary: dict[RopeConfig, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _slots: tuple[torch.Tensor, ...] | None = None

    def recurrent(
        self, op: str, inputs: Sequence[torch.Tensor | None], attributes: Sequence[object]
    ) -> tuple[torch.Tensor, ...]:
        """The operator ``op`` of the domain trt_edgellm on this step's rows; ``inputs`` without those about rows."""
        return getattr(torch.ops.trt_edgellm, op).default(*inputs, self.context_lengths, *attributes)

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """[b, t, heads, head_dim] -> [b, heads, t, head_dim], as this step's attention takes it."""
        return x.transpose(1, 2)

    def attend(
        self, config: AttentionConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, caches: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Attention over ``caches`` and the new tokens [b, heads, t, head_dim] -> y [b, t, width], new caches."""
        slots = self.slots()
        key, value = (updated_cache(past, new, slots) for past, new in zip(caches, (k, v), strict=True))
        y = attention(q, key, value, self.mask(config.sliding_window), config.scale)
        return y.transpose(1, 2).flatten(2), key, value

    def mask(self, window: int | None) -> torch.Tensor:
        """Visible keys [batch, 1, seq, max_seq]: causal, and within ``window`` tokens where it is given."""
        assert self.cache is not None
        if window not in self._masks:
            self._masks[window] = attention_mask(self.input_ids, self.past_lengths, self.cache, window or 0)
        return self._masks[window]

    def rotary(self, rope: RopeConfig, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [batch, seq, rotary_dim / 2] in the compute type."""
        if rope not in self._rotary:
            self._rotary[rope] = rotary_tables(
                self.input_ids, self.past_lengths, inv_freq, rope.attention_scaling, self.dtype
            )
        return self._rotary[rope]

    def slots(self) -> tuple[torch.Tensor, ...]:
        """start, slots, source and valid of cache_slots."""
        assert self.cache is not None
        if self._slots is None:
            self._slots = cache_slots(self.input_ids, self.context_lengths, self.past_lengths, self.cache)
        return self._slots


def updated_cache(past: torch.Tensor, new: torch.Tensor, slots: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """``past`` [b, h, max_seq, d] with the valid tokens of ``new`` [b, h, t, d] at their positions, else unchanged."""
    start, positions, source, valid = slots
    _, heads, _, head_dim = new.shape
    old = past.gather(2, positions.expand(-1, heads, -1, head_dim))
    moved = new.gather(2, source.expand(-1, heads, -1, head_dim))
    return tensor_scatter(past, torch.where(valid, moved, old), start)
