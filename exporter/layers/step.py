"""What all layers of one step share: cache slots, masks and rotary tables, each computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from exporter.graph import step_ops
from exporter.models.decoder_config import RopeConfig


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

    def mask(self, window: int | None) -> torch.Tensor:
        """Visible keys [batch, 1, seq, max_seq]: causal, and within ``window`` tokens where it is given."""
        assert self.cache is not None
        if window not in self._masks:
            self._masks[window] = step_ops.attention_mask(self.input_ids, self.past_lengths, self.cache, window or 0)
        return self._masks[window]

    def rotary(self, rope: RopeConfig, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [batch, seq, rotary_dim / 2] in the compute type."""
        if rope not in self._rotary:
            self._rotary[rope] = step_ops.rotary_tables(
                self.input_ids, self.past_lengths, inv_freq, rope.attention_scaling, self.dtype
            )
        return self._rotary[rope]

    def slots(self) -> tuple[torch.Tensor, ...]:
        """start, slots, source and valid of step_ops.cache_slots."""
        assert self.cache is not None
        if self._slots is None:
            self._slots = step_ops.cache_slots(self.input_ids, self.context_lengths, self.past_lengths, self.cache)
        return self._slots
