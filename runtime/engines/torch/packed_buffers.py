"""The arrays of a packed step in one piece of pinned host memory, which one copy takes to the device."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import (
    BLOCK_TABLE,
    NUM_ACCEPTED_TOKENS,
    QUERY_START_LOC,
    SEQ_LENS,
    SLOT_MAPPING,
    STATE_INDICES,
)
from hybridge.artifact.paged import (
    MAX_BLOCKS,
    NUM_LOGITS,
    ROW_BOUNDS,
    ROWS,
    STEP_INPUTS,
    TOKENS,
    draft_step_inputs,
)
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.graph import SNAPSHOT_SLOTS, STORED_TOKENS
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.engines.torch.tensors import torch_from_dtype

# Every array begins at a multiple of this many bytes.
_ALIGNMENT = 16
# Up to so many bytes the kernel that feeds tokens also copies the inputs: it reads them over the bus in one go.
_MOST_READ = 16384
# What fills an array beyond the step's own entries, 0 where it is not here.
_OF_ROWS = frozenset({SEQ_LENS, BLOCK_TABLE, STATE_INDICES, NUM_ACCEPTED_TOKENS, SNAPSHOT_SLOTS})
_FILL = {BLOCK_TABLE: -1, SLOT_MAPPING: -1, STATE_INDICES: -1, NUM_ACCEPTED_TOKENS: 1, SNAPSHOT_SLOTS: -1}
_STORED = "stored"


@dataclass(frozen=True)
class StepSize:
    """Tokens, rows, columns of the block table and wanted logits of a step, padding included.

    stored: tokens whose inputs are stored, of a step with draft tokens: all, or those that the step ``chooses``.
    """

    tokens: int
    rows: int
    blocks: int
    logits: int
    stored: int = 0
    chooses: bool = False


class PackedBuffers:
    """``tensors`` are the program's inputs by name, on the device once ``upload`` has been enqueued."""

    def __init__(self, device: TorchDevice, size: StepSize, drafts: int = 0, extra: Sequence[Binding] = ()) -> None:
        """``drafts``: draft tokens of each row at most, and one less than its slots; 0: the step has none.

        extra: inputs in addition to those of every step.
        """
        axes = {
            TOKENS: size.tokens,
            ROWS: size.rows,
            ROW_BOUNDS: size.rows + 1,
            MAX_BLOCKS: size.blocks,
            NUM_LOGITS: size.logits,
            _STORED: size.stored,
        }
        parts, end = [], 0
        for binding in (*_step_inputs(size, drafts), *extra):
            shape = binding.resolve(**axes)
            nbytes = int(np.prod(shape)) * binding.dtype.itemsize
            parts.append((binding, shape, slice(end, end + nbytes)))
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._host = device.pinned(end, dtype=torch.uint8)
        self._there = torch.empty(end, dtype=torch.uint8, device=device.torch) if device.is_gpu else self._host
        here = self._host.numpy()
        self.arrays = {b.name: here[part].view(b.dtype.numpy).reshape(shape) for b, shape, part in parts}
        self.tensors = {
            b.name: self._there[part].view(torch_from_dtype(b.dtype)).reshape(shape) for b, shape, part in parts
        }

    def fill(self, inputs: PackedInputs, leave: Container[str] = (), split: tuple[int, int] = (0, 0)) -> None:
        """Take ``inputs``, which has at most as much of everything; arrays named by ``leave`` stay unchanged.

        split: (row, n): so many rows without tokens are put before that row. Further rows, at the end, have no tokens
        either, further tokens belong to no row, further logits are those of the first token.
        """
        at, gap = split
        for name, array in self.arrays.items():
            given: np.ndarray = getattr(inputs, name)
            if name in leave:
                continue
            if name == QUERY_START_LOC:
                array[0] = 0
                _fill_rows(array[1:], given[1:], at, gap, (given[at], given[-1]))
            elif name in _OF_ROWS:
                _fill_rows(array, given, at, gap, (_FILL.get(name, 0),) * 2)
            else:
                array[: len(given)] = given
                array[len(given) :] = _FILL.get(name, 0)

    def upload(self, feeding: RowFeeding | None = None) -> None:
        """Enqueue the copy to the device, and after it ``feeding``."""
        is_copied = self._there is not self._host
        if feeding is not None and is_copied and self._host.nbytes <= _MOST_READ:
            feeding.enqueue(self.tensors, (self._host, self._there))
            return
        if is_copied:
            self._there.copy_(self._host, non_blocking=True)
        if feeding is not None:
            feeding.enqueue(self.tensors)


def _step_inputs(size: StepSize, drafts: int) -> list[Binding]:
    """Fields of PackedInputs, or of DraftInputs."""
    if not drafts:
        return [*STEP_INPUTS]
    slots = Binding(SNAPSHOT_SLOTS, DType.INT32, (ROWS, 1 + drafts))
    chosen = [Binding(STORED_TOKENS, DType.INT32, (_STORED,))] if size.chooses else []
    return [*draft_step_inputs(1 + drafts), slots, *chosen]


def _fill_rows(array: np.ndarray, given: np.ndarray, at: int, gap: int, between: tuple[int, int]) -> None:
    """``given`` with ``gap`` rows before row ``at`` and the rest of ``array`` after it, of what ``between`` says."""
    end = len(given) + gap
    array[at : at + gap], array[end:] = between
    if array.ndim == 1:
        array[:at], array[at + gap : end] = given[:at], given[at:]
        return
    columns = min(array.shape[-1], given.shape[-1])
    array[:at, :columns], array[at + gap : end, :columns] = given[:at, :columns], given[at:, :columns]
    array[:at, columns:] = array[at + gap : end, columns:] = _FILL[BLOCK_TABLE]
