"""Shared by all layers of one packed step: packed rows, with caches and states in pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hybridge.exporter.families.attention_config import CachedConfig, RopeConfig
from hybridge.exporter.ops.packed_rotary_tables import packed_rotary_tables


@dataclass
class PackedStep:
    """One call of a paged graph: positions [tokens] int64; slot_mapping [tokens], query_start_loc [rows + 1], seq_lens
    and state_indices [rows], block_table [rows, max_blocks], all int32. frequencies: inv_freq [rotary_dim / 2] of each
    rotary embedding.
    """

    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    state_indices: torch.Tensor
    dtype: torch.dtype
    frequencies: Mapping[RopeConfig, torch.Tensor]
    # Of the tokens, [tokens, hidden], as the first layer gets them.
    embeddings: torch.Tensor = field(init=False)
    # Of the tokens, float32 [..., router_size]: what the router of the next layer adds, where it adds some.
    router_states: torch.Tensor | None = field(default=None, init=False)
    _rotary: dict[RopeConfig, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def recurrent(
        self, op: str, inputs: Sequence[torch.Tensor | None], attributes: Sequence[object]
    ) -> tuple[torch.Tensor, ...]:
        """The operator ``op`` of the domain trt_edgellm on this step's rows; ``inputs`` without those about rows."""
        operator = getattr(torch.ops.trt_edgellm, op)
        found: tuple[torch.Tensor, ...] = operator.packed(
            *inputs, self.query_start_loc, self.state_indices, *attributes
        )
        return found

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, head_dim], which is what this step's attention takes."""
        return x

    def attend(
        self,
        config: CachedConfig,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        caches: Sequence[torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Attention over new tokens [tokens, heads, head_dim] and ``caches``: a pool, or one of e4m3 and its scales.

        sinks: as in ``Step.attend``. Returns y [tokens, width] and the new caches.
        """
        ops = torch.ops.trt_edgellm
        rows = (self.block_table, self.query_start_loc, self.seq_lens)
        attributes = (config.scale, config.sliding_window or 0, 0.0)
        if len(caches) == 1:
            pool = ops.reshape_and_cache.packed(k, v, *caches, self.slot_mapping)
            return ops.paged_attention.packed(q, pool, *rows, sinks, *attributes).flatten(-2), pool
        pools = ops.reshape_and_cache_fp8.packed(k, v, *caches, self.slot_mapping)
        return ops.paged_attention_fp8.packed(q, *pools, *rows, sinks, *attributes).flatten(-2), *pools

    def at_start(self) -> torch.Tensor:
        """bool [tokens, 1]: whether a token is the first of its sequence."""
        return (self.positions == 0).unsqueeze(-1)

    def rotary(self, rope: RopeConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [tokens, rotary_dim / 2] in the compute type."""
        if rope not in self._rotary:
            self._rotary[rope] = packed_rotary_tables(
                self.positions, self.frequencies[rope], rope.attention_scaling, self.dtype
            )
        return self._rotary[rope]
