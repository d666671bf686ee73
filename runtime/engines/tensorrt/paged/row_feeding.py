"""Feeds the tokens that the previous step chose to the rows of a decode step, on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.artifact.names import INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES
from hybridge.runtime.engines.feeding_tables import FeedingTables
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, Kernels
from hybridge.trt_plugins.kernels.fused import token_feeding
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS, FeedingProblem

_SOURCE_BYTES = 16


class RowFeeding:
    """Fill ``tables`` before a step; ``enqueue`` in it, after its inputs have been copied to the GPU."""

    def __init__(self, memory: DeviceMemory, rows: int) -> None:
        """For steps of up to ``rows`` rows. OutOfDeviceMemory when there is too little memory."""
        self._memory = memory
        self._pinned = memory.allocate_pinned(feeding_bytes(rows), "the tokens to feed")
        array = self._pinned.array
        words = array[_SOURCE_BYTES:].view(np.int32)
        self._stop_bytes = rows * MOST_STOPS * 4
        stops, sources = words[: rows * MOST_STOPS].reshape(rows, MOST_STOPS), words[rows * MOST_STOPS :]
        # The last step that used them must have ended before they are filled.
        self.tables = FeedingTables(array[:_SOURCE_BYTES].view(np.int64), stops, sources)
        self._kernels: dict[int, Kernels] = {}

    def prepare(self, rows: int) -> None:
        """Load the kernel for steps of ``rows`` rows; not possible during a capture."""
        if rows not in self._kernels:
            self._kernels[rows] = self._memory.bind(lambda traits: token_feeding.plan(FeedingProblem(rows), traits))

    def enqueue(self, rows: int, addresses: Mapping[str, int]) -> None:
        """Enqueue the kernel that changes the inputs of a step of ``rows`` rows, at ``addresses``, by input name."""
        source = self._pinned.address
        outputs = [addresses[name] for name in (INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES)]
        stops = source + _SOURCE_BYTES
        self._kernels[rows].launch(self._memory.stream, (source, stops, stops + self._stop_bytes), outputs)

    def free(self) -> None:
        """Release the memory; calling it twice is allowed."""
        self._pinned.free()


def feeding_bytes(rows: int) -> int:
    """Pinned host memory for steps of up to ``rows`` rows."""
    return _SOURCE_BYTES + rows * (MOST_STOPS + 1) * 4
