"""A multi-token prediction head over packed rows and pools."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.paged_decoder import PagedDecoder
from hybridge.exporter.ops.selected_tokens import selected_tokens


class MtpDecoder(PagedDecoder):
    """The traced module of a head: a paged decoder whose first layer gets embeddings and hidden states in one."""

    def __init__(self, config: DecoderConfig, kv_scales: bool = False) -> None:
        super().__init__(config, kv_scales)
        hidden = config.hidden_size
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)
        self.embedding_norm, self.hidden_norm, self.target_norm = (
            RmsNorm(hidden, config.norm_eps, config.norm_offset) for _ in range(3)
        )

    def forward(  # type: ignore[override]  # the graph's inputs, which are the layout's and two more
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        state_indices: torch.Tensor,
        logits_indices: torch.Tensor,
        hidden_states: torch.Tensor,
        is_own: torch.Tensor,
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As of PagedDecoder; input_ids [tokens]: token i + 1 at position i.

        hidden_states [tokens, hidden]: of token i after the last layer, before the norm that follows. is_own [tokens]
        int32: 0 where they are the model's, 1 where they are the head's own, with its norm, of the position before.
        """
        rows = (query_start_loc, seq_lens, block_table, slot_mapping, state_indices)
        step = PackedStep(positions, *rows, self.dtype, self.frequencies())
        wide = hidden_states.to(self.dtype)
        normed = torch.where(is_own.unsqueeze(-1) == 0, self.target_norm(wide), self.final_norm(wide))
        both = torch.cat((self.embedding_norm(self.embedded(input_ids)), self.hidden_norm(normed)), -1)
        x, new_states = self.run_from(self.projection(both), step, states)
        return self.logits(selected_tokens(x, logits_indices)), new_states
