"""In which CUDA context kernels are loaded and counters allocated, by a driver that notes it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels import device
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.source import KernelSource

PRIMARY, FIRST, SECOND = 0x10, 0x20, 0x30


class Params(ctypes.Structure):
    _fields_ = (("rows", ctypes.c_int64),)


LAUNCH = KernelLaunch(KernelSource("a.cu", "entry"), (1, 1, 1), (32, 1, 1), Params(), {}, shared_bytes=64 << 10)
PLAN = CallPlan((LAUNCH,), counter_bytes=4)


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_CONTEXT = 201


@dataclass
class Driver:
    """Contexts of GPU 0, a stack of current ones, and what was done in which. ids: of the contexts by address."""

    stack: list[int] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=lambda: {PRIMARY: 1, FIRST: 2, SECOND: 3})
    done: list[tuple[str, int]] = field(default_factory=list)
    retained: int = 0

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
    )
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=132,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232448,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=1 << 25,
    )

    def note(self, what: str, value: Any = 0) -> tuple[Result, Any]:
        if not self.stack:
            return Result.CUDA_ERROR_INVALID_CONTEXT, None
        self.done.append((what, self.stack[-1]))
        return Result.CUDA_SUCCESS, value

    def cuCtxGetCurrent(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.stack[-1] if self.stack else 0

    def cuCtxSetCurrent(self, context: int) -> tuple[Result]:
        self.stack[-1:] = [context]
        return (Result.CUDA_SUCCESS,)

    def cuCtxPushCurrent(self, context: int) -> tuple[Result]:
        self.stack.append(context)
        return (Result.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.stack.pop()

    def cuCtxGetId(self, context: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.ids[context]

    def cuCtxGetDevice(self) -> tuple[Result, int]:
        return (Result.CUDA_SUCCESS, 0) if self.stack else (Result.CUDA_ERROR_INVALID_CONTEXT, 0)

    def cuDeviceGet(self, ordinal: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, ordinal

    def cuDevicePrimaryCtxRetain(self, gpu: int) -> tuple[Result, int]:
        self.retained += 1
        return Result.CUDA_SUCCESS, PRIMARY

    def cuDeviceGetAttribute(self, value: int, gpu: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, value

    def cuModuleLoadData(self, cubin: bytes) -> tuple[Result, Any]:
        return self.note("load", 7)

    def cuModuleGetFunction(self, module: int, entry: bytes) -> tuple[Result, Any]:
        return self.note("find", ("function", self.stack[-1]))

    def cuFuncGetAttribute(self, attribute: int, function: object) -> tuple[Result, Any]:
        return self.note("size", 16)

    def cuFuncSetAttribute(self, attribute: int, function: object, value: int) -> tuple[Result]:
        return self.note("set")[:1]

    def cuMemAlloc(self, nbytes: int) -> tuple[Result, Any]:
        return self.note("allocate", 0x1000 * self.stack[-1])

    def cuMemsetD8(self, address: int, value: int, nbytes: int) -> tuple[Result]:
        return self.note("clear")[:1]

    def cuCtxSynchronize(self) -> tuple[Result]:
        return self.note("wait")[:1]


class Bound:
    """Instead of a bound plan, which wants the real driver."""

    def __init__(self, plan: CallPlan, functions: list[object], counters: int = 0) -> None:
        self.functions, self.counters = functions, counters


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(device, "cuda_driver", lambda: found)
    monkeypatch.setattr(device, "KernelCache", lambda: SimpleNamespace(get=lambda *_: SimpleNamespace(cubin=b"")))
    monkeypatch.setattr(device, "BoundPlan", Bound)
    monkeypatch.setattr(KernelDevice, "_devices", {})
    device._primary_context.cache_clear()
    return found


def test_a_thread_without_context_gets_the_primary_one(driver: Driver) -> None:
    one = KernelDevice.current()
    assert driver.stack == [PRIMARY] and KernelDevice.current() is one
    driver.stack.clear()  # another thread
    assert KernelDevice.current() is one and driver.stack == [PRIMARY] and driver.retained == 1


def test_each_context_has_kernels_and_counters_of_its_own(driver: Driver) -> None:
    devices: list[KernelDevice] = []
    for context in (FIRST, SECOND, FIRST):
        driver.stack = [context]
        devices.append(KernelDevice.current())
        bound: Any = devices[-1].bind(PLAN)
        assert bound.functions == [("function", context)] and bound.counters // 0x1000 >= context
        assert driver.stack == [context]
    assert devices[0] is devices[2] is not devices[1]
    assert [each for each in driver.done if each[0] in ("load", "allocate")] == [
        (what, context) for context in (FIRST, SECOND) for what in ("load", "allocate")
    ]


@pytest.mark.parametrize("elsewhere", [[], [SECOND]], ids=["none", "another"])
def test_kernels_are_loaded_in_their_own_context_whichever_is_current(driver: Driver, elsewhere: list[int]) -> None:
    driver.stack = [FIRST]
    found = KernelDevice.current()
    driver.stack = elsewhere.copy()
    found.bind(PLAN)
    assert {context for _, context in driver.done} == {FIRST} and driver.stack == elsewhere


def test_the_callers_context_comes_back_where_loading_fails(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.stack = [FIRST]
    found = KernelDevice.current()
    driver.stack = [SECOND]
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda cubin: (Result.CUDA_ERROR_INVALID_CONTEXT, None))
    with pytest.raises(EngineError, match=r"loading .*CUDA_ERROR_INVALID_CONTEXT"):
        found.bind(PLAN)
    assert driver.stack == [SECOND]


def test_a_new_context_at_a_reused_address_is_a_different_context(driver: Driver) -> None:
    driver.stack = [FIRST]
    before = KernelDevice.current()
    driver.ids[FIRST] = 4
    assert KernelDevice.current() is not before
