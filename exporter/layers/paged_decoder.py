"""The decoder over packed rows and pools: the paged layout."""

from __future__ import annotations

import torch

from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.layers.decoder import Decoder
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.ops.selected_tokens import selected_tokens


class PagedDecoder(Decoder):
    """The traced module of the paged layout: the same layers and parameters over another step.

    Forward takes ``states`` in the order of the graph's inputs: per attention layer one pool of keys and values, with
    ``kv_scales`` one of their scales behind it, then per recurrent layer the pools of conv and recurrent state.
    """

    def __init__(self, config: DecoderConfig, kv_scales: bool = False) -> None:
        super().__init__(config)
        self.attention_states = 2 if kv_scales else 1

    def forward(  # type: ignore[override]  # the graph's inputs, which are the layout's
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        state_indices: torch.Tensor,
        logits_indices: torch.Tensor,
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """input_ids [tokens] int64, the rest as in PackedStep; logits_indices [m] int32 -> logits float32 [m, vocab]
        of these tokens, and the new pools."""
        rows = (query_start_loc, seq_lens, block_table, slot_mapping, state_indices)
        step = PackedStep(positions, *rows, self.dtype, self.frequencies())
        x, new_states = self.run_layers(input_ids, step, states)
        return self.logits(selected_tokens(x, logits_indices)), new_states
