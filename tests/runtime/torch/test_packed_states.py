"""States of the prefix cache in 8 bits on the device of the torch engine: the same numbers on a GPU, no waiting for it,
and requests that go on from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.bindings import NUM_SLOTS, Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import conv_state, recurrent_state
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.torch.test_paged_kernel_calls import PAGED
from tests.support.agreement import relative_error
from tests.support.artifacts import ArtifactCache

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
SHAPES = ((3, 5, 17), (3, 5, 17), (2, 64, 128))


@contextmanager
def never_waiting(device: TorchDevice) -> Iterator[None]:
    """On a GPU, RuntimeError where the host waits for it inside."""
    if not device.is_gpu:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_gpu_packs_as_the_cpu_does_without_waiting(kind: str, dtype: DType) -> None:
    layers = [Binding(recurrent_state(r), dtype, (NUM_SLOTS, *shape), "x") for r, shape in enumerate(SHAPES)]
    specs = (Binding(conv_state(0), dtype, (NUM_SLOTS, 7, 3), "y"), *layers)
    rng, arrays = np.random.default_rng(2), {}
    for spec in specs:
        sizes = 10.0 ** rng.integers(-4, 4, (2, *spec.shape[1:-1], 1))
        arrays[spec.name] = (rng.standard_normal((2, *spec.shape[1:])) * sizes).astype(dtype.numpy)
    arrays[recurrent_state(0)][1, 2] = 0
    arrays[recurrent_state(1)][0, 1, 1, 3] = np.inf
    found = []
    for name in ("cuda", "cpu"):
        device = TorchDevice(name)
        pools = TorchPools(specs, PoolSizes(0, 4, 5, 3, kind), device)
        pools.fill(float("nan"))
        pools.swap_in(pools.copy_from_arrays(arrays, 0, 2), [], [0, 2])
        device.synchronize()
        with never_waiting(device):
            pools.pack_slots([2, 0], [0, 2])
            pools.unpack_slots([0, 2, 0], [4, 1, 3])
        unpacked = pools.arrays_from_copy(pools.swap_out([], [4, 1, 3]))
        found.append(({slot: pools.packed_out(slot) for slot in (0, 2)}, unpacked))
    (packed, unpacked), (expected_packed, expected) = found
    for slot, state in packed.items():
        check_same(state, expected_packed[slot])
    for name, array in unpacked.items():
        assert np.array_equal(array.astype(np.float32), expected[name].astype(np.float32), equal_nan=True), name
    assert np.isnan(expected[recurrent_state(1)].astype(np.float32)).sum() == SHAPES[1][-1]


def check_same(found: PackedState, expected: PackedState) -> None:
    for name, rows in found.packed.items():
        assert np.array_equal(rows.factors, expected.packed[name].factors, equal_nan=True), name
        finite = np.isfinite(rows.factors)
        assert np.array_equal(
            rows.values.view(np.uint8)[finite], expected.packed[name].values.view(np.uint8)[finite]
        ), name
    for name, array in found.exact.items():
        assert np.array_equal(array, expected.exact[name])


@pytest.mark.parametrize(("states", "most"), [("int8", 2e-2), ("fp8", 8e-2)])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_chats_continue_from_packed_states(device: str, states: str, most: float, artifacts: ArtifactCache) -> None:
    """Two chats of three turns; every state of the cache next to one that was computed from scratch."""
    pytest.importorskip("onnxscript", reason="needs the export extra (onnxscript)")
    options = {"dtype": DType.FLOAT32, "layout": "paged", "max_batch_size": 4, "max_seq_len": 200}
    folder = artifacts.get("nemotron_h", "float32", PAGED, **options).folder
    engine = TorchPagedEngine(folder, device=device)
    rng = np.random.default_rng(3)
    with LLM(folder, engine=engine, serving=served(engine, states)) as llm:
        chats = [rng.integers(3, 97, 30).tolist() for _ in range(2)]
        for turn in range(3):
            answers = llm.generate(chats, max_new_tokens=5)
            for chat, answer in zip(chats, answers, strict=True):
                assert answer.cached_tokens == (len(chat) - 4 if turn else 0)
                chat += [*answer.token_ids, 5, 6, 7]
        llm.loop.settle()
        tree, found = llm.loop.prefix_cache.tree, {}
        for node in tree.walk():
            if node.state is not None:
                found[node.key] = engine.packed_out(node.state).arrays()
        report = llm.prefix_cache_report()
        assert report.state_bytes == report.states * engine.packed_slot_bytes(states) > 0
        llm.loop.scheduler.check_integrity()
        # The engine gets all but the last token of an answer and the new tokens.
        fed = [chat[:-4] for chat in chats]
        assert all(key_from_tokens(tokens) in found for tokens in fed)
    exact = TorchPagedEngine(folder, device=device)
    with LLM(folder, engine=exact, serving=served(exact, "exact")) as llm:
        for tokens in fed:
            llm.generate(tokens, max_new_tokens=1)
            llm.loop.settle()
            node = llm.loop.prefix_cache.tree.match(key_from_tokens(tokens)).node
            assert node.end == len(tokens) and node.state is not None
            compare(found[key_from_tokens(tokens)], exact.arrays_from_copy(exact.swap_out([], [node.state])), most)


def served(engine: TorchPagedEngine, states: str) -> ServingSettings:
    """Room for four sequences of full length and eight states."""
    memory = 4 * 15 * engine.block_bytes(16) + 12 * engine.slot_bytes
    return ServingSettings(memory_bytes=memory, prefix_cache=PrefixCacheSettings(cached_states=8, states=states))


def compare(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], most: float) -> None:
    errors = {name: relative_error(found[name], expected[name]) for name in found if expected[name].size}
    assert max(errors.values()) <= most, errors
    assert max(error for name, error in errors.items() if "recurrent" in name) > 1e-5, "they are in 8 bits"
