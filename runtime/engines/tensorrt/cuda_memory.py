"""Device memory, one stream and graphs of this process's GPU, through cuda.core (cuda.bindings for plain copies)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.artifact.extras import install_command
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory, Graph, Marker, PinnedAllocation
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.driver import checked, cuda_driver
from hybridge.trt_plugins.kernels.launcher import BoundPlan

T = TypeVar("T")
# Unsafe calls of this thread during a capture end it with an error instead of escaping from the graph.
_CAPTURE_MODE = "thread_local"


def cuda_core() -> ModuleType:
    """The module cuda.core; EngineError where the package is missing."""
    try:
        import cuda.core
    except ImportError as error:
        raise EngineError(
            f"the tensorrt engine needs cuda-core, which cannot be imported ({error}): {install_command('cuda')}"
        ) from error
    return cuda.core


class CudaMemory(DeviceMemory):
    """Memory of GPU ``ordinal`` in its primary context, which TensorRT and the plugins use too."""

    def __init__(self, ordinal: int = 0) -> None:
        """Open the GPU; EngineError without driver, GPU or cuda-core."""
        core = cuda_core()
        self._driver = cuda_driver()
        self._device = _attempt(lambda: core.Device(ordinal), f"opening GPU {ordinal}")
        # Not by number: a thread may have that of one that has ended.
        self._of_thread = threading.local()
        self.enter()
        self._stream = _attempt(self._device.create_stream, "creating a stream")
        self._handle = int(self._stream.handle)
        self._pinned_source = core.LegacyPinnedMemoryResource()
        self._closed = False

    @property
    def stream(self) -> int:
        return self._handle

    def enter(self) -> None:
        if not hasattr(self._of_thread, "entered"):
            _attempt(self._device.set_current, "entering the GPU's context")
            self._of_thread.entered = True

    def allocate(self, nbytes: int, purpose: str) -> Allocation:
        what = f"{nbytes / 2**20:.0f} MiB of GPU memory for {purpose}"
        return _CudaAllocation(_attempt(lambda: self._device.allocate(nbytes, stream=self._stream), what), nbytes)

    def allocate_pinned(self, nbytes: int, purpose: str) -> PinnedAllocation:
        what = f"{nbytes / 2**20:.0f} MiB of pinned host memory for {purpose}"
        return _CudaPinned(_attempt(lambda: self._pinned_source.allocate(nbytes), what), nbytes)

    def free_bytes(self) -> int:
        free, _ = checked(self._driver.cuMemGetInfo(), "asking for free memory")
        return int(free)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        checked(self._driver.cuMemcpyAsync(target, source, nbytes, self._handle), "copying")

    def copy_rows(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int) -> None:
        driver = self._driver
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch, copy.dstDevice, copy.dstPitch = source, source_pitch, target, target_pitch
        copy.WidthInBytes, copy.Height = width, rows
        checked(driver.cuMemcpy2DAsync(copy, self._handle), "copying rows")

    def zero(self, target: int, nbytes: int) -> None:
        checked(self._driver.cuMemsetD8Async(target, 0, nbytes, self._handle), "clearing memory")

    def synchronize(self) -> None:
        _attempt(self._stream.sync, "waiting for the GPU")

    def marker(self) -> Marker:
        return _CudaMarker(self._stream)

    def bind(self, plan: Callable[[DeviceTraits], CallPlan]) -> BoundPlan:
        self.enter()
        device = KernelDevice.current()
        return device.bind(plan(device.traits))

    def capture(self, work: Callable[[], None]) -> Graph:
        builder = _attempt(self._stream.create_graph_builder, "preparing a graph")
        try:
            _attempt(lambda: builder.begin_building(_CAPTURE_MODE), "beginning a graph")
            try:
                work()
            except BaseException:
                # Always end the capture, also after errors: the stream refuses other work until then.
                with suppress(Exception):
                    builder.end_building()
                raise
            _attempt(builder.end_building, "ending a graph")
            return _CudaGraph(_attempt(builder.complete, "instantiating a graph"), self._stream)
        finally:
            builder.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            # What failed before was reported then; the stream has to go in any case.
            with suppress(Exception):
                self._stream.sync()
            self._stream.close()


class _CudaAllocation(Allocation):
    def __init__(self, buffer: Any, nbytes: int) -> None:
        self._buffer, self.address, self.nbytes = buffer, int(buffer.handle), nbytes

    def free(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.close()


class _CudaPinned(_CudaAllocation, PinnedAllocation):
    def __init__(self, buffer: Any, nbytes: int) -> None:
        super().__init__(buffer, nbytes)
        view: Any = (ctypes.c_uint8 * nbytes).from_address(self.address)
        # The memory is freed only when no array refers to it.
        view.owner = buffer
        self.array = np.frombuffer(view, np.uint8)

    def free(self) -> None:
        self._buffer = None
        self.array = np.empty(0, np.uint8)


class _CudaMarker(Marker):
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._event = _attempt(stream.record, "marking the stream")

    @property
    def is_reached(self) -> bool:
        return bool(_attempt(lambda: self._event.is_done, "asking for the step"))

    def record(self) -> None:
        _attempt(lambda: self._stream.record(self._event), "marking the stream")

    def wait(self) -> None:
        _attempt(self._event.sync, "running the step")

    def close(self) -> None:
        self._event.close()


class _CudaGraph(Graph):
    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def launch(self) -> None:
        _attempt(lambda: self._graph.launch(self._stream), "launching a graph")

    def close(self) -> None:
        self._graph.close()


def _attempt(call: Callable[[], T], doing: str) -> T:
    """The result of ``call``; cuda.core's errors (it has no public base class of them) as EngineError."""
    try:
        return call()
    except EngineError:
        raise
    except Exception as error:
        if "OUT_OF_MEMORY" in str(error) or isinstance(error, MemoryError):
            raise OutOfDeviceMemory(
                f"expected {doing}, found less: close other programs, or build the engine with a smaller "
                "`max_batch_size` or `max_seq_len`"
            ) from error
        raise EngineError(f"{doing}: the GPU reports {' '.join(str(error).split())}") from error
