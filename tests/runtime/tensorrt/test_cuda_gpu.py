"""Memory, graphs and whole steps on a real GPU; the stand-in of TensorRT computes the parsed network on the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT
from tests.runtime.tensorrt import built, test_decode_graphs, test_moved_rows, test_steps
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts
from tests.runtime.tensorrt.host_computed import HostComputedMemory

pytestmark = pytest.mark.gpu


@pytest.fixture
def memory() -> Iterator[CudaMemory]:
    memory = CudaMemory()
    yield memory
    memory.close()
    memory.close()


def host(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_copies_fills_and_strided_rows(memory: CudaMemory) -> None:
    values = np.random.default_rng(0).integers(0, 255, (6, 40)).astype(np.uint8)
    allocation = memory.allocate(values.nbytes, "a test")
    assert allocation.address % ALIGNMENT == 0
    memory.copy(allocation.address, host(values), values.nbytes)
    found = np.full_like(values, 0xFF)
    memory.copy(host(found), allocation.address, found.nbytes)
    memory.synchronize()
    assert np.array_equal(found, values)
    window = np.full((6, 13), 0xFF, np.uint8)
    memory.copy_rows(host(window), 13, allocation.address, 40, 13, 6)
    memory.zero(allocation.address, 80)
    memory.copy(host(found), allocation.address, found.nbytes)
    memory.synchronize()
    assert np.array_equal(window, values[:, :13])
    assert not found[:2].any() and np.array_equal(found[2:], values[2:])
    allocation.free()
    allocation.free()


def test_pinned_memory_is_read_when_the_marker_has_passed(memory: CudaMemory) -> None:
    pinned, device = memory.allocate_pinned(64 << 20, "a test"), memory.allocate(64 << 20, "a test")
    pinned.array[:] = 7
    marker = memory.marker()
    for _ in range(3):
        pinned.array[:] = 7
        memory.zero(device.address, device.nbytes)
        memory.copy(pinned.address, device.address, device.nbytes)
        marker.record()
        marker.wait()
        assert not pinned.array.any()
    kept = pinned.array[:16]
    for thing in (pinned, device):
        thing.free()
    marker.close()
    assert not kept.any()


def test_a_graph_runs_at_its_launches_only(memory: CudaMemory) -> None:
    pinned, device = memory.allocate_pinned(256, "a test"), memory.allocate(256, "a test")
    memory.zero(device.address, 256)
    pinned.array[:] = 1
    graph = memory.capture(lambda: memory.copy(device.address, pinned.address, 256))
    found = np.full(256, 0xFF, np.uint8)

    def content() -> int:
        memory.copy(host(found), device.address, 256)
        memory.synchronize()
        assert (found == found[0]).all()
        return int(found[0])

    assert content() == 0
    for value in (1, 2, 3):
        pinned.array[:] = value
        graph.launch()
        assert content() == value
    graph.close()
    graph.close()
    for thing in (pinned, device):
        thing.free()


def test_a_failed_capture_leaves_a_working_stream(memory: CudaMemory) -> None:
    device = memory.allocate(256, "a test")

    def work() -> None:
        memory.zero(device.address, 256)
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        memory.capture(work)
    found = np.full(256, 0xFF, np.uint8)
    memory.zero(device.address, 256)
    memory.copy(host(found), device.address, 256)
    memory.synchronize()
    assert not found.any()
    device.free()


def test_too_much_memory_is_named(memory: CudaMemory) -> None:
    with pytest.raises(OutOfDeviceMemory, match="of GPU memory for the states of 9 rows, found less"):
        memory.allocate(1 << 45, "the states of 9 rows")
    memory.allocate(256, "a test").free()


def test_the_projects_kernels_are_captured_and_replayed(memory: CudaMemory) -> None:
    """causal_conv1d in place on its state: two direct steps and two replayed ones shift it four times."""
    from hybridge.trt_plugins.catalog import spec_of
    from hybridge.trt_plugins.kernels import catalog
    from hybridge.trt_plugins.kernels.call import OpCall
    from hybridge.trt_plugins.kernels.device import KernelDevice
    from hybridge.trt_plugins.kernels.layout import TensorLayout

    dim, width, f32 = 24, 4, DType.FLOAT32
    rng = np.random.default_rng(1)
    shapes = {"x": (1, dim), "weight": (dim, 1, width), "bias": (dim,), "conv_state": (1, dim, width)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["context_lengths"] = np.ones(1, np.int32)
    spec = spec_of("causal_conv1d")
    layouts = [TensorLayout.contiguous(f32, shape) for shape in shapes.values()]
    layouts.append(TensorLayout.contiguous(DType.INT32, (1,)))
    call = OpCall(spec, tuple(layouts), (layouts[0], layouts[3]), spec.complete_attributes({"activation": "none"}))
    device = KernelDevice.current()
    bound = device.bind(catalog.plan(call, device.traits))
    held = {name: memory.allocate(array.nbytes, name) for name, array in arrays.items()}
    y = memory.allocate(arrays["x"].nbytes, "y")
    for name, array in arrays.items():
        memory.copy(held[name].address, host(array), array.nbytes)
    inputs, outputs = [held[name].address for name in arrays], [y.address, held["conv_state"].address]

    def step() -> None:
        bound.launch(memory.stream, inputs, outputs)

    step()
    step()
    graph = memory.capture(step)
    graph.launch()
    graph.launch()
    state, found = np.empty((dim, width), np.float32), np.empty(dim, np.float32)
    memory.copy(host(state), held["conv_state"].address, state.nbytes)
    memory.copy(host(found), y.address, found.nbytes)
    memory.synchronize()
    x = arrays["x"][0].astype(np.float64)
    expected = x * arrays["weight"][:, 0].astype(np.float64).sum(1) + arrays["bias"]
    assert np.array_equal(state, np.repeat(arrays["x"].T, width, 1))
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    graph.close()
    for allocation in (*held.values(), y):
        allocation.free()


CHECKS = {
    "steps": partial(test_steps.test_ragged_steps_match_a_recomputation_from_the_first_token, SMALL),
    "replay": test_decode_graphs.test_decoding_is_replayed_without_tensorrt,
    "shared states": test_decode_graphs.test_a_model_whose_states_all_share_memory_has_one_graph,
    "rows and the host": test_moved_rows.test_sequences_join_fork_and_come_back_from_the_host,
    "rows between sets": test_moved_rows.test_rows_move_between_sets_without_the_host,
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_engine_on_a_gpus_stream(
    name: str, built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine does over a fake device it does in this stream, with captured graphs."""
    monkeypatch.setattr(built, "FakeMemory", HostComputedMemory)
    CHECKS[name](built_artifacts, monkeypatch)
