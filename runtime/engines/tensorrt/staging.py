"""Device memory with pinned host memory of the same size, for what is copied between the two."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.tensorrt.memory import DeviceMemory


class Staging:
    """``address`` on the device, ``host`` address and ``array`` [nbytes] uint8 in pinned memory."""

    def __init__(self, memory: DeviceMemory, nbytes: int, purpose: str) -> None:
        """OutOfDeviceMemory names ``purpose`` when there is too little memory."""
        self._device = memory.allocate(nbytes, purpose)
        try:
            self._pinned = memory.allocate_pinned(nbytes, purpose)
        except BaseException:
            self._device.free()
            raise
        self.address, self.host = self._device.address, self._pinned.address

    @property
    def array(self) -> np.ndarray:
        """The pinned memory."""
        return self._pinned.array

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        self._device.free()
        self._pinned.free()
