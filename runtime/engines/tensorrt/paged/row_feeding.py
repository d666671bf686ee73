"""Feeds the tokens that the previous step chose to the rows of a decode step, on the GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hybridge.artifact.names import INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.feeding_tables import FeedingTables
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, Kernels
from hybridge.trt_plugins.kernels.fused import token_feeding
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS, FeedingProblem

_SOURCE_BYTES = 16


class RowFeeding:
    """``fill`` before a step, ``enqueue`` in it, after its inputs have been copied to the GPU."""

    def __init__(self, memory: DeviceMemory, rows: int) -> None:
        """For steps of up to ``rows`` rows. OutOfDeviceMemory when there is too little memory."""
        self._memory = memory
        self._pinned = memory.allocate_pinned(feeding_bytes(rows), "the tokens to feed")
        array = self._pinned.array
        stops = array[_SOURCE_BYTES:].view(np.int32).reshape(rows, MOST_STOPS)
        self._tables = FeedingTables(array[:_SOURCE_BYTES].view(np.int64), stops)
        self._kernels: dict[int, Kernels] = {}

    def fill(self, tokens: ChosenTokens, stops: Sequence[Collection[int]]) -> None:
        """As ``FeedingTables.fill``; the last step that used the tables must have ended."""
        self._tables.fill(tokens, stops)

    def prepare(self, rows: int) -> None:
        """Load the kernel for steps of ``rows`` rows; not possible during a capture."""
        if rows not in self._kernels:
            self._kernels[rows] = self._memory.bind(lambda traits: token_feeding.plan(FeedingProblem(rows), traits))

    def enqueue(self, rows: int, addresses: Mapping[str, int]) -> None:
        """Enqueue the kernel that changes the inputs of a step of ``rows`` rows, at ``addresses``, by input name."""
        source = self._pinned.address
        outputs = [addresses[name] for name in (INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES)]
        self._kernels[rows].launch(self._memory.stream, (source, source + _SOURCE_BYTES), outputs)

    def free(self) -> None:
        """Release the memory; calling it twice is allowed."""
        self._pinned.free()


def feeding_bytes(rows: int) -> int:
    """Pinned host memory for steps of up to ``rows`` rows."""
    return _SOURCE_BYTES + rows * MOST_STOPS * 4
