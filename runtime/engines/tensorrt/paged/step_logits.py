"""The logits of one step in device memory; rows are copied to the host on request."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.staging import Staging


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

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The logits of ``rows`` [m], as a new array [m, vocab]. The step must be done."""
        if not rows.size:
            return np.empty((0, self._vocab), np.float32)
        first, count = int(rows.min()), int(rows.max()) + 1 - int(rows.min())
        nbytes = count * self._row_bytes
        self._memory.enter()
        self._memory.copy(self._staging.host, self._staging.address + first * self._row_bytes, nbytes)
        self._memory.synchronize()
        found: np.ndarray = self._staging.array[:nbytes].view(np.float32).reshape(count, self._vocab)[rows - first]
        return found

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        self._staging.free()

    @property
    def _row_bytes(self) -> int:
        return self._vocab * np.dtype(np.float32).itemsize
