"""Hidden states in device memory, which steps of a model write and steps of its prediction head read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT, DeviceMemory


class DeviceRows(HiddenRows):
    """Rows [slots, hidden] of one type. After those of a step come ``own`` rows for the last states of the head itself.

    Each part of a step in several parts writes to the same rows; ``collect`` copies them before the next part runs.
    """

    def __init__(self, memory: DeviceMemory, reserved: int, tokens: int, own: int, hidden: int, dtype: DType) -> None:
        """For steps of up to ``tokens`` tokens, padding included. OutOfDeviceMemory when there is too little memory."""
        super().__init__(reserved)
        self._memory, self._dtype, self._hidden = memory, dtype, hidden
        self.row_bytes = hidden * dtype.itemsize
        self.own, self._tokens = own, tokens
        self.count = self.first + tokens + own
        self._rows = memory.allocate(self.count * self.row_bytes, "hidden states")
        try:
            self._parts = memory.allocate(tokens * self.row_bytes, "hidden states")
        except BaseException:
            self._rows.free()
            raise

    @property
    def first(self) -> int:
        """Index of the row of a step's first token; TensorRT requires its address to be aligned."""
        return _first(self.reserved, self.row_bytes)

    @property
    def own_first(self) -> int:
        """Index of the first row with a state of the head itself."""
        return self.first + self._tokens

    @property
    def shape(self) -> tuple[int, int]:
        """[rows, hidden] of the whole buffer."""
        return self.count, self._hidden

    @property
    def address(self) -> int:
        """The address of row 0."""
        return self._rows.address

    def address_of(self, place: int) -> int:
        """The address of a row."""
        return self.address + place * self.row_bytes

    def collect(self, tokens: np.ndarray) -> None:
        """Copy what the last part wrote. ``tokens`` [n]: indices of its tokens in the whole step."""
        bounds = [0, *(np.flatnonzero(np.diff(tokens) != 1) + 1).tolist(), len(tokens)]
        for begin, end in pairwise(bounds):
            target = self._parts.address + int(tokens[begin]) * self.row_bytes
            self._memory.copy(target, self.address_of(self.first + begin), (end - begin) * self.row_bytes)

    def join(self, tokens: int) -> None:
        """Copy the collected states of all ``tokens`` tokens to the rows of the step."""
        self._memory.copy(self.address_of(self.first), self._parts.address, tokens * self.row_bytes)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._memory.enter()
        for source, target in zip(sources, targets, strict=True):
            self._memory.copy(self.address_of(target), self.address_of(source), self.row_bytes)

    def read(self, slots: Sequence[int]) -> np.ndarray:
        found = np.empty((len(slots), self._hidden), self._dtype.numpy)
        self._memory.enter()
        for row, slot in zip(found, slots, strict=True):
            self._memory.copy(row.ctypes.data, self.address_of(slot), self.row_bytes)
        self._memory.synchronize()
        return found.astype(np.float32)

    def free(self) -> None:
        """Release the memory; calling it twice is allowed."""
        self._rows.free()
        self._parts.free()


def rows_bytes(reserved: int, tokens: int, own: int, row_bytes: int) -> int:
    """Device memory of ``DeviceRows``."""
    return (_first(reserved, row_bytes) + 2 * tokens + own) * row_bytes


def _first(reserved: int, row_bytes: int) -> int:
    step = ALIGNMENT // math.gcd(ALIGNMENT, row_bytes)
    return -(-(reserved + 1) // step) * step
