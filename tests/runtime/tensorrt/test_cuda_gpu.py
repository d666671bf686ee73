"""Memory, graphs and whole steps on a real GPU; only TensorRT itself is a stand-in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.caches import HybridCacheManager
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT
from tests.runtime.packed_steps import Row, packed_step
from tests.runtime.tensorrt.cuda_toy import open_toy
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA, VOCAB, toy_config, toy_greedy, toy_logits

pytestmark = pytest.mark.gpu
STEPS = ((7, 0, 5), (3, 4, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 0, 1), (1, 1, 1), (6, 2, 2), (1, 1, 1), (1, 1, 1))


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


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=["hybrid", "attention", "mamba"])
def test_ragged_steps_are_exact(layers: tuple[str, ...], in_place: bool, tmp_path: Path) -> None:
    config = toy_config(layers)
    engine, _ = open_toy(config, tmp_path, in_place)
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, VOCAB, 40) for _ in range(3)]
    states, done = engine.allocate_states(3, 16), [0, 0, 0]
    for counts in STEPS:
        ids = np.full((3, max(1, *counts)), VOCAB - 1, np.int64)
        for r, n in enumerate(counts):
            ids[r, :n] = tokens[r][done[r] : done[r] + n]
        logits = engine.step(StepInputs(ids, np.array(counts, np.int32), np.array(done, np.int32)), states)
        done = [d + n for d, n in zip(done, counts, strict=True)]
        for r, n in enumerate(counts):
            if n:
                assert np.array_equal(logits[r], toy_logits(config, tokens[r][: done[r]]))
    engine.close()


@pytest.mark.parametrize("in_place", [False, True])
def test_decoding_is_replayed_and_exact_in_batches_that_change(in_place: bool, tmp_path: Path) -> None:
    config = toy_config(max_seq_len=80, max_batch=8)
    engine, library = open_toy(config, tmp_path, in_place)
    for _ in range(2):
        prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]
        states = HybridCacheManager(engine, 3, 8)
        ids = np.zeros((3, 5), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        counts = np.array([len(prompt) for prompt in prompts], np.int32)
        logits = engine.step(StepInputs(ids, counts, np.zeros(3, np.int32)), states.states)
        states.lengths[:] = counts.tolist()
        found = [[int(row.argmax())] for row in logits]
        live = [0, 1, 2]
        decoder = engine.decoder(live, states.states)
        for step in range(30):
            if step == 12:
                live = [0, 2]
                states.compact(live)
                decoder = engine.decoder([0, 1], states.states)
            rows = decoder.step([found[each][-1] for each in live], states.lengths)
            states.lengths[:] = [length + 1 for length in states.lengths]
            for each, scores in zip(live, rows, strict=True):
                found[each].append(int(scores.argmax()))
        for tokens, prompt in zip(found, prompts, strict=True):
            assert tokens == toy_greedy(config, prompt, len(tokens))
        del states, decoder
        gc.collect()
    turns = 1 if in_place else 2
    # Batches of 3 and of 2 rows: per turn one direct step and one capture, and none the second time round.
    _, *decode = library.contexts
    assert [context.enqueues for context in decode] == [2] * (2 * turns)
    engine.close()
    assert library.closed


def test_rows_travel_between_sets_and_the_host(tmp_path: Path) -> None:
    config = toy_config()
    engine, _ = open_toy(config, tmp_path, in_place=False)
    served = DenseAsPaged(engine)
    served.allocate_pools(PoolSizes(3, config.max_seq_len, 3))
    served.zero_slots([0])
    rows = [Row(place, place, []) for place in range(3)]
    served.step(packed_step(rows[:1], [list(range(1, 9))], [set()], config.max_seq_len))
    rows[0].tokens += range(1, 9)
    served.swap_in(served.swap_out([0], [0]), [1], [1])
    served.copy_blocks([1], [2])
    served.copy_slots([1], [2])
    for row in rows[1:]:
        row.tokens += rows[0].tokens
    logits = served.step(packed_step(rows, [[9], [10], [11]], [{0}] * 3, config.max_seq_len))
    for token, found in zip((9, 10, 11), logits, strict=True):
        assert np.array_equal(found, toy_logits(config, [*range(1, 9), token]))
    engine.close()
