"""The calls of cuda.core and cuda.bindings, against doubles that know the real classes' signatures. No GPU."""

from __future__ import annotations

import ctypes
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt import cuda_memory
from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from tests.support.checked_double import CheckedDouble, checked_call

core = pytest.importorskip("cuda.core", reason="needs cuda-core (extra cuda)")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings (extra cuda)")
graph_module = pytest.importorskip("cuda.core.graph", reason="needs cuda-core (extra cuda)")


class Calls(list):
    """What was called, in order; ``fail`` names the call that fails next, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[str, str] = {}

    def note(self, name: str, *arguments: object) -> None:
        self.append((name, *arguments))
        if name in self.fail:
            raise RuntimeError(self.fail.pop(name))

    def names(self) -> list[str]:
        return [name for name, *_ in self]


class FakeDevice:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def set_current(self) -> None:
        self._calls.note("set_current")

    def create_stream(self) -> Any:
        return CheckedDouble(core.Stream, FakeStream(self._calls))

    def allocate(self, size: int, stream: Any) -> Any:
        self._calls.note("allocate", size)
        return CheckedDouble(core.Buffer, FakeBuffer(self._calls, 4096))


class FakeStream:
    handle = 77

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def sync(self) -> None:
        self._calls.note("sync")

    def close(self) -> None:
        self._calls.note("close stream")

    def record(self, event: Any = None) -> Any:
        self._calls.note("record", event is not None)
        return event or CheckedDouble(core.Event, FakeEvent(self._calls))

    def create_graph_builder(self) -> Any:
        return CheckedDouble(graph_module.GraphBuilder, FakeBuilder(self._calls))


class FakeEvent:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def sync(self) -> None:
        self._calls.note("wait")

    def close(self) -> None:
        self._calls.note("close event")


class FakeBuffer:
    def __init__(self, calls: Calls, handle: int) -> None:
        self._calls, self.handle = calls, handle

    def close(self) -> None:
        self._calls.note("free")


class FakeBuilder:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def begin_building(self, mode: str) -> None:
        self._calls.note("begin", mode)

    def end_building(self) -> None:
        self._calls.note("end")

    def complete(self) -> Any:
        self._calls.note("complete")
        return CheckedDouble(graph_module.Graph, FakeGraph(self._calls))

    def close(self) -> None:
        self._calls.note("close builder")


class FakeGraph:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def launch(self, stream: Any) -> None:
        self._calls.note("launch")

    def close(self) -> None:
        self._calls.note("close graph")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Doubles of cuda.core and the driver that record their calls."""
    from cuda.bindings import driver

    calls = Calls()
    pinned = (ctypes.c_uint8 * 64)()

    class Pinned:
        def allocate(self, size: int) -> Any:
            calls.note("allocate pinned", size)
            return CheckedDouble(core.Buffer, FakeBuffer(calls, ctypes.addressof(pinned)))

    def called(name: str) -> Any:
        def call(*arguments: object) -> tuple[int]:
            calls.note(name, *arguments)
            return (0,)

        return checked_call(getattr(driver, name), call)

    names = ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuMemsetD8Async")
    fake_driver = SimpleNamespace(
        **{name: called(name) for name in names}, CUDA_MEMCPY2D=driver.CUDA_MEMCPY2D, CUmemorytype=driver.CUmemorytype
    )
    fake_core = SimpleNamespace(
        Device=lambda ordinal: CheckedDouble(core.Device, FakeDevice(calls)),
        LegacyPinnedMemoryResource=lambda: CheckedDouble(core.LegacyPinnedMemoryResource, Pinned()),
    )
    monkeypatch.setattr(cuda_memory, "cuda_core", lambda: fake_core)
    monkeypatch.setattr(cuda_memory, "cuda_driver", lambda: fake_driver)
    return calls


def test_memory_is_freed_once_and_the_stream_closed_once(calls: Calls) -> None:
    memory = CudaMemory()
    assert memory.stream == 77
    allocation = memory.allocate(512, "states")
    assert (allocation.address, allocation.nbytes) == (4096, 512)
    for _ in range(2):
        allocation.free()
        memory.close()
    assert calls == [("set_current",), ("allocate", 512), ("free",), ("sync",), ("close stream",)]


def test_pinned_memory_is_viewed_as_bytes(calls: Calls) -> None:
    pinned = CudaMemory().allocate_pinned(64, "logits")
    view = pinned.array[8:16].view(np.int64)
    view[0] = 5
    assert pinned.array.size == 64 and ctypes.c_int64.from_address(pinned.address + 8).value == 5
    pinned.free()
    pinned.free()
    # The memory lives as long as it is referenced.
    assert view[0] == 5 and pinned.array.size == 0


def test_copies_and_fills(calls: Calls) -> None:
    memory = CudaMemory()
    calls.clear()
    memory.copy(1000, 2000, 30)
    memory.zero(1000, 30)
    memory.copy_rows(1000, 64, 2000, 96, 32, 5)
    assert calls[:2] == [("cuMemcpyAsync", 1000, 2000, 30, 77), ("cuMemsetD8Async", 1000, 0, 30, 77)]
    name, copy, stream = calls[2]
    assert (name, stream) == ("cuMemcpy2DAsync", 77)
    assert (int(copy.dstDevice), copy.dstPitch, int(copy.srcDevice), copy.srcPitch) == (1000, 64, 2000, 96)
    assert (copy.WidthInBytes, copy.Height) == (32, 5)
    assert copy.srcMemoryType == copy.dstMemoryType and "UNIFIED" in copy.srcMemoryType.name


def test_a_marker_is_recorded_again(calls: Calls) -> None:
    memory = CudaMemory()
    calls.clear()
    marker = memory.marker()
    marker.record()
    marker.wait()
    marker.close()
    assert calls == [("record", False), ("record", True), ("wait",), ("close event",)]


def test_a_capture_becomes_a_graph(calls: Calls) -> None:
    memory = CudaMemory()
    calls.clear()
    graph = memory.capture(lambda: memory.zero(1000, 8))
    graph.launch()
    graph.close()
    assert calls.names() == [
        "begin", "cuMemsetD8Async", "end", "complete", "close builder", "launch", "close graph",
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["begin", "cuMemsetD8Async", "end", "complete"])
def test_a_capture_that_fails_is_ended_and_closed(calls: Calls, where: str) -> None:
    memory = CudaMemory()
    calls.clear()
    calls.fail = {where: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}
    with pytest.raises((EngineError, RuntimeError), match="INVALIDATED"):
        memory.capture(lambda: memory.zero(1000, 8))
    assert calls.names()[-1] == "close builder"
    assert "end" in calls.names() or where == "begin"


def test_errors_of_the_gpu_reach_the_user(calls: Calls) -> None:
    memory = CudaMemory()
    calls.fail = {"allocate": "CUDA_ERROR_OUT_OF_MEMORY: no more", "sync": "CUDA_ERROR_ILLEGAL_ADDRESS:\n bad"}
    with pytest.raises(OutOfDeviceMemory, match="expected 3 MiB of GPU memory for the states of 2 rows, found less"):
        memory.allocate(3 << 20, "the states of 2 rows")
    with pytest.raises(EngineError, match="waiting for the GPU: the GPU reports CUDA_ERROR_ILLEGAL_ADDRESS: bad"):
        memory.synchronize()


def entered_by_a_thread(memory: CudaMemory) -> None:
    thread = Thread(target=memory.enter)
    thread.start()
    thread.join()


def test_another_thread_enters_the_context(calls: Calls) -> None:
    memory = CudaMemory()
    memory.enter()
    entered_by_a_thread(memory)
    memory.enter()
    assert calls.names() == ["set_current"] * 2


def test_a_thread_that_has_the_number_of_one_that_ended_enters_too(calls: Calls) -> None:
    memory = CudaMemory()
    for _ in range(4):
        entered_by_a_thread(memory)
    assert calls.names() == ["set_current"] * 5


def test_a_machine_without_a_driver_says_so() -> None:
    from hybridge.trt_plugins.kernels.driver import cuda_driver

    try:
        cuda_driver()
    except EngineError:
        with pytest.raises(EngineError, match=r"expected a CUDA (driver|GPU), found none"):
            CudaMemory()
    else:
        pytest.skip("needs a machine without an NVIDIA GPU")
