"""This machine's GPU for the stand-in of TensorRT, whose contexts compute on the host in the order of the stream.

The stream, its copies, events, graphs and sampling kernels are real. What the engine takes for device memory is pinned
host memory, so that a host function of the stream reads and writes it; other tests allocate memory of the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT, Graph, PinnedAllocation
from hybridge.trt_plugins.kernels.driver import checked

Work = Callable[[], None]
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostComputedMemory(CudaMemory):
    """Takes the place of FakeMemory."""

    def __init__(self, capacity: int = 0) -> None:
        """``capacity``: not used; what the GPU has."""
        super().__init__()
        self.captured: list[Work] | None = None
        self.graphs: list[CountedGraph] = []
        self._allocations: list[AlignedAllocation] = []
        # Graphs run their host functions again and again. CUDA passes a number, which is not 0, to the function.
        self._works: list[Work] = []
        self._errors: list[BaseException] = []
        self._function = _HOST_FUNCTION(self._run)

    def allocate(self, nbytes: int, purpose: str) -> AlignedAllocation:
        assert self.captured is None, "memory was allocated in a capture"
        self._allocations.append(AlignedAllocation(self.allocate_pinned(nbytes + ALIGNMENT, purpose), nbytes))
        return self._allocations[-1]

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at ``address`` as a uint8 view."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def enqueue(self, work: Work) -> None:
        """Put ``work`` at the end of the stream, or into the graph that is being captured."""
        self._works.append(work)
        function = self._driver.CUhostFn(ctypes.cast(self._function, ctypes.c_void_p).value)
        checked(self._driver.cuLaunchHostFunc(self.stream, function, len(self._works)), "enqueueing a host function")

    def zero(self, target: int, nbytes: int) -> None:
        self.enqueue(lambda: self.bytes_at(target, nbytes).fill(0))

    def capture(self, work: Work) -> Graph:
        self.captured = []
        try:
            self.graphs.append(CountedGraph(super().capture(work)))
        finally:
            self.captured = None
        return self.graphs[-1]

    def check_nothing_left(self) -> None:
        """Everything was released, and no work has failed."""
        assert self._closed and all(allocation.is_free for allocation in self._allocations)
        assert all(graph.closed for graph in self.graphs)
        assert not self._errors, self._errors

    def _run(self, number: int) -> None:
        # An exception does not leave a host function.
        try:
            self._works[number - 1]()
        except BaseException as error:
            self._errors.append(error)


class AlignedAllocation(PinnedAllocation):
    """``nbytes`` in ``whole``, full of 0xFF, which is NaN in every floating type."""

    def __init__(self, whole: PinnedAllocation, nbytes: int) -> None:
        self._whole, self.nbytes, self.is_free = whole, nbytes, False
        self.address = -(-whole.address // ALIGNMENT) * ALIGNMENT
        begin = self.address - whole.address
        self.array = whole.array[begin : begin + nbytes]
        self.array.fill(0xFF)

    def free(self) -> None:
        self.is_free = True
        self.array = np.empty(0, np.uint8)
        self._whole.free()


class CountedGraph(Graph):
    """``graph`` and the number of its launches."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.launches, self.closed = graph, 0, False

    def launch(self) -> None:
        self.launches += 1
        self._graph.launch()

    def close(self) -> None:
        self.closed = True
        self._graph.close()
