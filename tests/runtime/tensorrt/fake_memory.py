"""Device memory without a device: NumPy arrays, a stream that runs late, and captures that run nothing.

Enqueued work waits until it is waited for, as on a GPU that is slow; reading host memory too early shows stale
or poisoned bytes. Fresh memory holds 0xFF bytes, which are NaN in every floating type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT, DeviceMemory, Graph, Marker, PinnedAllocation, aligned
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from tests.support.sampling_reference import run_reference

STREAM = 77
TRAITS = DeviceTraits((8, 7), 16, 163_840, 4 << 20)
# No process has memory there.
_FIRST_ADDRESS = 1 << 52
Work = Callable[[], None]


class FakeAllocation(PinnedAllocation):
    def __init__(self, memory: FakeMemory, address: int, nbytes: int) -> None:
        self.address, self.nbytes, self._memory = address, nbytes, memory
        self.array = np.full(nbytes, 0xFF, np.uint8)
        self.is_free = False

    def free(self) -> None:
        assert not self._memory.pending, "memory was freed while work was pending"
        self.is_free = True


class FakeMarker(Marker):
    def __init__(self, memory: FakeMemory) -> None:
        self._memory, self.closed = memory, False
        memory.markers.append(self)
        self.record()

    @property
    def is_reached(self) -> bool:
        return self._memory.done >= self._end

    def record(self) -> None:
        assert not self.closed
        self._end = self._memory.enqueued

    def wait(self) -> None:
        assert not self.closed
        self._memory.run_until(self._end)

    def close(self) -> None:
        self.closed = True


class FakeGraph(Graph):
    def __init__(self, memory: FakeMemory, work: list[Work]) -> None:
        self._memory, self._work, self.closed, self.launches = memory, work, False, 0
        memory.graphs.append(self)

    def launch(self) -> None:
        assert not self.closed
        self.launches += 1
        for work in self._work:
            self._memory.enqueue(work)

    def close(self) -> None:
        assert not self._memory.pending, "a graph was closed while work was pending"
        self.closed = True


class FakeKernels:
    """Kernels that their host reference computes."""

    def __init__(self, memory: FakeMemory, plan: CallPlan) -> None:
        self._memory, self._plan = memory, plan

    def launch(self, stream: int, inputs: Sequence[int], outputs: Sequence[int], workspace: int = 0) -> None:
        assert stream == STREAM
        scratch = self._memory.bytes_at(workspace, self._plan.workspace_bytes)

        def work() -> None:
            scratch[...] = 0xFF
            run_reference(self._plan, self._memory.bytes_at, inputs, outputs)

        self._memory.enqueue(work)


class FakeMemory(DeviceMemory):
    """``capacity``: bytes of device memory. ``fail_capture``, ``fail_wait``: what a capture, and waiting, raises."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity, self.closed, self.entered = capacity, False, 0
        self.pending: list[Work] = []
        self.enqueued = self.done = 0
        self.allocations: list[FakeAllocation] = []
        self.markers: list[FakeMarker] = []
        self.graphs: list[FakeGraph] = []
        self.captured: list[Work] | None = None
        self.fail_capture: Exception | None = None
        self.fail_wait: Exception | None = None
        self._next = _FIRST_ADDRESS

    @property
    def stream(self) -> int:
        return STREAM

    @property
    def live(self) -> list[FakeAllocation]:
        return [allocation for allocation in self.allocations if not allocation.is_free]

    def enter(self) -> None:
        self.entered += 1

    def allocate(self, nbytes: int, purpose: str) -> FakeAllocation:
        assert self.captured is None, "memory was allocated in a capture"
        if nbytes > self.free_bytes():
            raise OutOfDeviceMemory(f"expected {nbytes} bytes for {purpose}, found less: close other programs")
        allocation = FakeAllocation(self, self._next, nbytes)
        # A gap, so that running over an end never reaches another allocation.
        self._next += aligned(nbytes) + ALIGNMENT
        self.allocations.append(allocation)
        return allocation

    def allocate_pinned(self, nbytes: int, purpose: str) -> FakeAllocation:
        return self.allocate(nbytes, purpose)

    def free_bytes(self) -> int:
        return self.capacity - sum(allocation.nbytes for allocation in self.live)

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at ``address``, of the device or of the host, as a uint8 view."""
        if address < _FIRST_ADDRESS:
            return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        for allocation in self.live:
            start = address - allocation.address
            if start >= 0 and start + nbytes <= allocation.nbytes:
                return allocation.array[start : start + nbytes]
        raise AssertionError(f"no allocation holds the {nbytes} bytes at {address:#x}")

    def enqueue(self, work: Work) -> None:
        """Put ``work`` at the end of the stream, or into the running capture."""
        assert not self.closed
        if self.captured is not None:
            self.captured.append(work)
        else:
            self.pending.append(work)
            self.enqueued += 1

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.copy_rows(target, nbytes, source, nbytes, nbytes, 1)

    def copy_rows(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int) -> None:
        assert width <= target_pitch and width <= source_pitch

        def work() -> None:
            for row in range(rows):
                from_bytes = self.bytes_at(source + row * source_pitch, width).copy()
                self.bytes_at(target + row * target_pitch, width)[...] = from_bytes

        self.enqueue(work)

    def zero(self, target: int, nbytes: int) -> None:
        def work() -> None:
            self.bytes_at(target, nbytes)[...] = 0

        self.enqueue(work)

    def synchronize(self) -> None:
        self.run_until(self.enqueued)
        if self.fail_wait is not None:
            raise self.fail_wait

    def run_until(self, end: int) -> None:
        """Run what is pending up to the ``end``-th work ever enqueued."""
        assert self.captured is None, "a wait during a capture"
        while self.done < end:
            self.done += 1
            self.pending.pop(0)()

    def marker(self) -> FakeMarker:
        return FakeMarker(self)

    def bind(self, plan: Callable[[DeviceTraits], CallPlan]) -> FakeKernels:
        assert self.captured is None, "kernels were loaded in a capture"
        return FakeKernels(self, plan(TRAITS))

    def capture(self, work: Work) -> FakeGraph:
        assert self.captured is None
        self.captured = []
        try:
            work()
            if self.fail_capture is not None:
                raise self.fail_capture
            return FakeGraph(self, self.captured)
        finally:
            self.captured = None

    def close(self) -> None:
        self.run_until(self.enqueued)
        self.closed = True

    def check_nothing_left(self) -> None:
        """Everything was released, and the stream after it."""
        assert self.closed
        assert not self.live
        assert all(marker.closed for marker in self.markers) and all(graph.closed for graph in self.graphs)
