"""The device memory that the engine works with, behind an interface that also has a stand-in without a GPU.

Addresses are plain integers in one address space: device memory, pinned host memory and NumPy arrays alike (CUDA's
unified addressing). Copies, fills and graphs are ordered on one stream; nothing waits unless it says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits

# TensorRT asks for tensors at multiples of this many bytes.
ALIGNMENT = 256


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Allocation(ABC):
    """``nbytes`` of device memory at ``address``, a multiple of ALIGNMENT; its content is undefined at first."""

    address: int
    nbytes: int

    @abstractmethod
    def free(self) -> None:
        """Give the memory back; calling it twice is allowed. No work that uses it may be pending."""


class PinnedAllocation(Allocation):
    """Host memory that the device copies to and from without staging; ``array`` [nbytes] uint8 views it."""

    array: np.ndarray


class Marker(ABC):
    """A point on the stream."""

    @property
    @abstractmethod
    def is_reached(self) -> bool:
        """Whether all work before the last ``record`` is done, or has failed."""

    @abstractmethod
    def wait(self) -> None:
        """Return when all work before the last ``record`` is done; EngineError when some of it failed."""

    @abstractmethod
    def record(self) -> None:
        """Move the marker to the end of the work enqueued so far."""

    @abstractmethod
    def close(self) -> None:
        """Release it; calling it twice is allowed."""


class Graph(ABC):
    """Work that was captured once and runs again at every launch, with the addresses it was captured with."""

    @abstractmethod
    def launch(self) -> None:
        """Enqueue the work."""

    @abstractmethod
    def close(self) -> None:
        """Release it; calling it twice is allowed. No launch of it may be pending."""


class Kernels(Protocol):
    """Kernels ready to launch, such as a ``BoundPlan``."""

    def launch(self, stream: int, inputs: Sequence[int], outputs: Sequence[int], workspace: int = 0) -> None:
        """Enqueue them with these addresses."""


class DeviceMemory(ABC):
    """Memory and one stream of one GPU. Every method raises EngineError when the device refuses."""

    @property
    @abstractmethod
    def stream(self) -> int:
        """The handle of the stream (CUstream)."""

    @abstractmethod
    def enter(self) -> None:
        """Make the GPU current in the calling thread."""

    @abstractmethod
    def allocate(self, nbytes: int, purpose: str) -> Allocation:
        """Device memory; OutOfDeviceMemory names ``purpose`` when there is not enough."""

    @abstractmethod
    def allocate_pinned(self, nbytes: int, purpose: str) -> PinnedAllocation:
        """Pinned host memory; OutOfDeviceMemory names ``purpose`` when there is not enough."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Device memory that is free now."""

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between any two addresses. Pageable host memory may be reused only after ``synchronize``."""

    @abstractmethod
    def copy_rows(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int) -> None:
        """Copy ``rows`` runs of ``width`` bytes whose starts are ``pitch`` bytes apart."""

    @abstractmethod
    def zero(self, target: int, nbytes: int) -> None:
        """Fill device memory with zero bytes."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when all work on the stream is done."""

    @abstractmethod
    def marker(self) -> Marker:
        """A new marker at the present end of the stream."""

    @abstractmethod
    def bind(self, plan: Callable[[DeviceTraits], CallPlan]) -> Kernels:
        """The kernels of ``plan`` for this GPU, compiled and loaded; UnsupportedError where ``plan`` refuses."""

    @abstractmethod
    def capture(self, work: Callable[[], None]) -> Graph:
        """Capture what ``work`` enqueues on the stream as a graph, without running it; ``work`` may raise."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the stream and release it; calling it twice is allowed. Allocations must be freed before."""
