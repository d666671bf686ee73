"""The arrays of a packed step in one piece of pinned host memory, which one copy takes to the device."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import torch

from artifact.names import BLOCK_TABLE, QUERY_START_LOC, SLOT_MAPPING, STATE_INDICES
from artifact.paged import MAX_BLOCKS, NUM_LOGITS, ROW_BOUNDS, ROWS, STEP_INPUTS, TOKENS
from runtime.engines.paged import PackedInputs
from runtime.engines.torch.device import TorchDevice
from runtime.engines.torch.tensors import torch_from_dtype

# Every array begins at a multiple of so many bytes.
_ALIGNMENT = 16
# What fills an array beyond the step's own entries, 0 where it is not here; bounds go on with the last one.
_FILL = {BLOCK_TABLE: -1, SLOT_MAPPING: -1, STATE_INDICES: -1}


@dataclass(frozen=True)
class StepSize:
    """Tokens, rows, columns of the block table and wanted logits of a step, padding included."""

    tokens: int
    rows: int
    blocks: int
    logits: int


class PackedBuffers:
    """``tensors`` are the program's inputs by name, on the device once ``upload`` has been enqueued."""

    def __init__(self, device: TorchDevice, size: StepSize) -> None:
        axes = {
            TOKENS: size.tokens,
            ROWS: size.rows,
            ROW_BOUNDS: size.rows + 1,
            MAX_BLOCKS: size.blocks,
            NUM_LOGITS: size.logits,
        }
        parts, end = [], 0
        for binding in STEP_INPUTS:
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

    def fill(self, inputs: PackedInputs, leave: Container[str] = ()) -> None:
        """Take ``inputs``, which has at most as much of everything; arrays named by ``leave`` stay as they are.

        Further tokens belong to no row, further rows have no tokens, further logits are those of the first token.
        """
        for name in self.arrays:
            if name in leave:
                continue
            given: np.ndarray = getattr(inputs, name)
            array: np.ndarray = self.arrays[name]
            if array.shape == given.shape:
                array[...] = given
                continue
            count = len(given)
            array[count:] = given[-1] if name == QUERY_START_LOC else _FILL.get(name, 0)
            if name == BLOCK_TABLE:
                array[:count] = -1
                columns = min(array.shape[-1], given.shape[-1])
                array[:count][..., :columns] = given[..., :columns]
            else:
                array[:count] = given

    def upload(self) -> None:
        """Enqueue the copy to the device."""
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)
