"""Hidden states on the device, written by the steps of a model and read by those of its multi-token prediction head.

Both are part of the work of a step, so that a recorded one does it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import HIDDEN_STATES, IS_OWN, LOGITS, LOGITS_INDICES
from hybridge.artifact.paged import NUM_LOGITS, TOKENS
from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.torch.best_tokens import BEST, best_of
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.program import Program, StepProgram
from hybridge.runtime.engines.torch.step_shapes import padded_tokens
from hybridge.runtime.engines.torch.tensors import torch_from_dtype

# Fields of HeadInputs.
HIDDEN_SLOTS, OWN_SLOTS = "hidden_slots", "own_slots"


class TorchRows(HiddenRows):
    """Rows in the device's memory: ``tensor`` [slots, hidden] of the model's type."""

    def __init__(self, device: TorchDevice, reserved: int, tokens: int, hidden: int, dtype: DType) -> None:
        """With room for steps of ``tokens`` tokens and their padding. EngineError: memory is short."""
        super().__init__(reserved)
        self._device = device
        shape = 1 + reserved + padded_tokens(tokens), hidden
        try:
            self.tensor = device.zeros(*shape, dtype=torch_from_dtype(dtype))
        except RuntimeError as error:
            raise EngineError(
                f"expected memory for hidden states {list(shape)}, found too little: lower max_tokens"
            ) from error

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        with self._device.active():
            slots = torch.tensor((list(sources), list(targets))).to(self._device.torch, non_blocking=True)
            self.tensor.index_copy_(0, slots[1], self.tensor.index_select(0, slots[0]))

    def read(self, slots: Sequence[int]) -> np.ndarray:
        with self._device.active():
            found = self.tensor[list(slots)].float().cpu().numpy()
        return np.asarray(found)


class ShowingProgram:
    """The program of a model whose output ``value`` [tokens, hidden] it leaves in ``rows``."""

    extra: tuple[Binding, ...] = ()

    def __init__(self, program: StepProgram, value: str, rows: TorchRows) -> None:
        self._program, self._value, self._rows = program, value, rows

    def run(self, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = self._program.run(feeds)
        hidden = found[self._value]
        self._rows.tensor[self._rows.first :][: len(hidden)].copy_(hidden)
        return found


class HeadProgram:
    """The program of a head, whose output ``value`` it leaves in ``rows`` too, where its hidden states come from.

    The most likely token of each row it leaves in ``tokens`` [slots] int64, -1 where its logits are not finite: the
    head continues from both, and neither has to come to the host for that.
    """

    extra: tuple[Binding, ...] = (
        Binding(HIDDEN_SLOTS, DType.INT64, (TOKENS,)),
        Binding(IS_OWN, DType.INT32, (TOKENS,)),
        Binding(OWN_SLOTS, DType.INT64, (NUM_LOGITS,)),
    )

    def __init__(self, program: Program, value: str, rows: TorchRows, tokens: torch.Tensor) -> None:
        self._program, self._value, self._rows, self._tokens = program, value, rows, tokens

    def run(self, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        rows, slots = self._rows.tensor, feeds[OWN_SLOTS]
        found = self._program.run({**feeds, HIDDEN_STATES: rows.index_select(0, feeds[HIDDEN_SLOTS])})
        last, indices = found[self._value], feeds[LOGITS_INDICES]
        if indices is not None:  # else all
            last = last.index_select(0, indices)
        # Padding goes nowhere, several times: no index_copy_, which would want each place once.
        rows[slots] = last.to(rows.dtype)
        found[BEST] = self._tokens[slots] = best_of(found[LOGITS])
        return found

    def last_tokens(self, slots: torch.Tensor) -> torch.Tensor:
        """The head's previous tokens at ``slots``, as input_ids."""
        return self._tokens.index_select(0, slots).clamp_(min=0)
