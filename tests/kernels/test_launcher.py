"""What reaches the driver in a launch: real configurations and parameters, taken by a function in its place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra (cuda-bindings)")

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels import launcher
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.launcher import BoundPlan
from hybridge.trt_plugins.kernels.source import KernelSource

# CUlaunchConfig: grid and block sizes and shared bytes, then after padding the stream, attributes and their number.
_STREAM = 32


class Params(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("scratch", ctypes.c_void_p), ("rows", ctypes.c_int64))


@dataclass
class Driver:
    """Notes launches: function, grid, block, shared bytes, stream, parameters."""

    code: int = 0
    launches: list[tuple] = field(default_factory=list)

    def function(self, name: str, arguments: int) -> Callable[..., int]:
        assert (name, arguments) == ("cuLaunchKernelEx", 4)
        self._kept = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._launch)
        return self._kept

    def _launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        sizes = (ctypes.c_uint32 * 7).from_address(config)
        stream = ctypes.c_uint64.from_address(config + _STREAM).value
        given = Params.from_address(ctypes.c_void_p.from_address(parameters).value or 0)
        values = tuple(getattr(given, name) or 0 for name, _ in Params._fields_)
        assert extra is None
        self.launches.append((function, tuple(sizes), stream, values))
        return self.code


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(launcher, "driver_function", found.function)
    monkeypatch.setattr(launcher, "cuda_driver", lambda: __import__("cuda.bindings.driver", fromlist=["driver"]))
    monkeypatch.setattr(launcher, "result_name", lambda code: f"CUDA_ERROR_{code}")
    return found


def bound(count: int) -> BoundPlan:
    """``count`` kernels with the functions 100, 101, ...; kernel i writes 16 * i bytes into the workspace."""
    launches = []
    for index in range(count):
        pointers = {
            "x": PointerSource(Memory.INPUT, 1),
            "y": PointerSource(Memory.OUTPUT, 0),
            "scratch": PointerSource(Memory.WORKSPACE, 0, 16 * index),
        }
        source = KernelSource("norm/rms_norm.cu", f"kernel_{index}", ())
        params = Params(rows=7 + index)
        launches.append(KernelLaunch(source, (3, 4 + index, 5), (64, 1, 1), params, pointers, 256, overlap=True))
    return BoundPlan(CallPlan(tuple(launches), name="test"), [100 + index for index in range(count)])


def test_every_kernel_gets_its_own_configuration_and_parameters(driver: Driver) -> None:
    bound(2).launch(0x77, [1, 2], [3], 0x1000)
    assert driver.launches == [
        (100, (3, 4, 5, 64, 1, 1, 256), 0x77, (2, 3, 0x1000, 7)),
        (101, (3, 5, 5, 64, 1, 1, 256), 0x77, (2, 3, 0x1010, 8)),
    ]


def test_changes_between_calls_reach_the_next_call(driver: Driver) -> None:
    plan, inputs = bound(1), [1, 2]
    plan.launch(5, inputs, [3], 16)
    inputs[1] = 9  # the caller's own list
    plan.launch(5, inputs, [3], 16)
    plan.launch(5, inputs, [4], 16)
    plan.launch(5, inputs, [4], 32)
    plan.launch(6, inputs, [4], 32)
    plan.launch(6, inputs, [4], 32)
    plan.launch(6, [1, 0], [4], 32)
    found = [(stream, *values[:3]) for _, _, stream, values in driver.launches]
    assert found == [
        (5, 2, 3, 16),
        (5, 9, 3, 16),
        (5, 9, 4, 16),
        (5, 9, 4, 32),
        (6, 9, 4, 32),
        (6, 9, 4, 32),
        (6, 0, 4, 32),
    ]


def test_a_refused_launch_names_the_kernel(driver: Driver) -> None:
    plan, driver.code = bound(2), 719
    with pytest.raises(EngineError, match=r"launching kernel_0.*: the CUDA driver returned CUDA_ERROR_719"):
        plan.launch(0, [1, 2], [3])
    assert len(driver.launches) == 1


def test_a_call_with_too_few_addresses_leaves_nothing_behind_for_the_next(driver: Driver) -> None:
    plan = bound(2)
    plan.launch(5, [1, 2], [3], 16)
    with pytest.raises(IndexError):
        plan.launch(6, [1, 8], [], 16)
    plan.launch(5, [1, 2], [3], 16)
    assert driver.launches[2:] == driver.launches[:2]
