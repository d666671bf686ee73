"""Attention and a recurrent mixer side by side, whose outputs are added."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.exporter.families.decoder_config import ParallelConfig
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.step import Step


class Parallel(nn.Module):
    """attention(x) + mamba(x), each with multipliers of its input and output."""

    def __init__(self, config: ParallelConfig, attention: nn.Module, mamba: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.attention, self.mamba = attention, mamba

    def forward(self, x: torch.Tensor, step: Step | PackedStep, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [..., hidden]; states of attention, then of the recurrent mixer -> y like x, and new states."""
        *caches, conv_state, recurrent_state = states
        first, second = self.config.attention, self.config.mamba
        attended, *new_caches = self.attention(_scaled(x, first.input_multiplier), step, *caches)
        mixed, *new_states = self.mamba(_scaled(x, second.input_multiplier), step, conv_state, recurrent_state)
        y = _scaled(attended, first.output_multiplier) + _scaled(mixed, second.output_multiplier)
        return y, *new_caches, *new_states


def _scaled(x: torch.Tensor, multiplier: float) -> torch.Tensor:
    return x if multiplier == 1.0 else x * multiplier
