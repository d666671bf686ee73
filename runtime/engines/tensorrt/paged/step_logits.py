"""The logits of one step in device memory and, after a download, in pinned memory."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.paged.staging import Staging


class StepLogits:
    """Logits [n, vocab] float32 at fixed addresses, which captured steps hold."""

    def __init__(self, memory: DeviceMemory, most: int, vocab_size: int) -> None:
        """Room for ``most`` rows; OutOfDeviceMemory when there is too little memory."""
        self._memory, self._vocab = memory, vocab_size
        self._staging = Staging(memory, most * self._row_bytes, "logits")

    @property
    def address(self) -> int:
        """The address to which the engine writes them."""
        return self._staging.address

    def download(self, count: int) -> None:
        """Enqueue the copy of the first ``count`` rows to the host."""
        self._memory.copy(self._staging.host, self._staging.address, count * self._row_bytes)

    def read(self, count: int) -> np.ndarray:
        """The first ``count`` rows on the host, valid until the next download."""
        rows: np.ndarray = self._staging.array[: count * self._row_bytes].view(np.float32)
        return rows.reshape(count, self._vocab)

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        self._staging.free()

    @property
    def _row_bytes(self) -> int:
        return self._vocab * np.dtype(np.float32).itemsize
