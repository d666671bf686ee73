"""Packed steps on the CPU: the same tokens as the other engines, alone and in a batch, padded or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch import best_tokens
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from hybridge.runtime.engines.torch.packed_step import PackedStep, StepShape
from hybridge.runtime.engines.torch.paged_decode import PagedDecodeStep, padded_blocks, padded_rows
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.step_shapes import own_shape, padded_shape, padded_tokens
from hybridge.runtime.llm import LLM
from hybridge.verification.paged_sequences import PagedSequences
from tests.runtime.serving.engine_cases import check_disturbed_requests
from tests.support.agreement import relative_error
from tests.support.artifacts import ArtifactCache, Exported

ROWS = 6


@pytest.fixture(scope="module")
def hybrid(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=ROWS, max_seq_len=96)


def test_every_engine_gives_the_same_tokens(hybrid: Exported, artifacts: ArtifactCache) -> None:
    dense = artifacts.get("nemotron_h", "float32", max_batch_size=ROWS, max_seq_len=96)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, hybrid.config.vocab_size, n).tolist() for n in (1, 7, 33, 64, 2, 18)]
    found = []
    for folder, engine in ((hybrid.folder, "torch"), (hybrid.folder, "onnxruntime"), (dense.folder, "torch")):
        with LLM(folder, engine=engine) as llm:
            found.append([answer.token_ids for answer in llm.generate(prompts, max_new_tokens=12)])
    assert found[0] == found[1] == found[2]


def test_disturbed_requests_get_the_tokens_of_each_alone(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")

    def poison(blocks: Sequence[int], slots: Sequence[int]) -> None:
        for name, pool in engine.pools.tensors.items():
            if name.startswith("kv"):
                pool[:, list(blocks)] = float("nan")
            else:
                pool[list(slots)] = float("nan")

    check_disturbed_requests(engine, poison)


def fed(engine: TorchPagedEngine, seed: int = 0) -> tuple[PagedSequences, list[int], np.ndarray]:
    """Three sequences of different lengths, in pools of NaN, and tokens to continue with."""
    sequences = PagedSequences(engine, 3, 60, 4, seed=seed)
    handles = [sequences.add() for _ in range(3)]
    tokens = np.random.default_rng(4).integers(0, engine.config.vocab_size, (3, 20))
    sequences.step({handle: tokens[handle, : 5 + 3 * handle] for handle in handles})
    return sequences, handles, tokens


def test_padding_of_a_mixed_step_changes_nothing(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    shape, found = StepShape(StepSize(24, 8, 9, 16), 4, 64), []
    for padded in (False, True):
        sequences, handles, tokens = fed(engine)
        work = {handles[2]: tokens[2, 11:12], handles[0]: tokens[0, 5:12], handles[1]: tokens[1, 8:9]}
        inputs = sequences._inputs(work, 0)
        if padded:
            step = PackedStep(engine.device, engine._model.program(Phase.PREFILL), engine.pools, shape)
            result = step.launch(inputs, (1, 3))
        else:
            result = engine.launch(inputs)
        assert sequences.untouched()
        states = [value for handle in handles for value in sequences.states(handle).values()]
        found.append([result.all_logits(), np.array(result.best_tokens()), *states])
    for plain, other in zip(*found, strict=True):
        assert relative_error(other, plain) < 1e-5


def test_shapes_of_mixed_steps(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    sequences, handles, tokens = fed(engine)
    inputs = sequences._inputs({handles[2]: tokens[2, 11:12], handles[0]: tokens[0, 5:12]}, 0)
    assert own_shape(inputs, 0) == (StepShape(StepSize(8, 2, inputs.block_table.shape[1], 8), 1, 64), (1, 0))
    assert padded_shape(inputs, 0, 4) == (StepShape(StepSize(16, 9, 64, 8), 8, 64), (1, 7))


def test_a_decode_step_of_more_rows_and_blocks_changes_nothing(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    found = []
    for recorded in (False, True):
        sequences, handles, tokens = fed(engine)
        work = {handle: tokens[handle, 5 + 3 * handle :][:1] for handle in reversed(handles)}
        inputs = sequences._inputs(work, 0)
        if recorded:
            program = engine._model.program(Phase.DECODE)
            step = PagedDecodeStep(engine.device, program, engine.pools, 8, 9)
            result = step.launch(inputs)
        else:
            result = engine.launch(inputs)
        assert sequences.untouched()
        states = [value for handle in handles for value in sequences.states(handle).values()]
        found.append([result.all_logits(), np.array(result.best_tokens()), result.logits(1), *states])
        assert result.best_tokens() == result.all_logits().argmax(1).tolist()
    for plain, padded in zip(*found, strict=True):
        assert relative_error(padded, plain) < 1e-5


def test_only_requested_logits_are_copied_from_a_decode_step(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    sequences, handles, tokens = fed(engine)
    inputs = sequences._inputs({handle: tokens[handle, 5 + 3 * handle :][:1] for handle in handles}, 0)
    step = PagedDecodeStep(engine.device, engine._model.program(Phase.DECODE), engine.pools, 4, 8)
    every = step.launch(inputs).all_logits()
    some = step.launch(replace(inputs, logits_indices=np.array([0, 2], np.int32)))
    # The second run feeds the same tokens again: states move on, so only shapes and places are compared.
    assert every.shape[0] == 3 and some.all_logits().shape[0] == 2 == len(some.best_tokens())
    np.testing.assert_array_equal(some.logits(1), some.all_logits()[1])
    for rows in ([0], [1], [0, 1]):
        np.testing.assert_array_equal(some.rows(rows), some.all_logits()[rows])


def test_tokens_without_finite_logits_are_none() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [float("nan"), 1.0, 2.0], [-float("inf")] * 3, [0.0, float("inf"), 1.0]])
    assert best_tokens.best_of(logits).tolist() == [1, -1, -1, -1]


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 24), (60, 64), (62, 63)])
def test_rows_of_recorded_steps(rows: int, padded: int) -> None:
    assert padded_rows(rows, 63 if rows == 62 else 64) == padded


@pytest.mark.parametrize(("blocks", "padded"), [(1, 16), (16, 16), (17, 32), (40, 64), (100, 128)])
def test_blocks_of_recorded_steps(blocks: int, padded: int) -> None:
    assert padded_blocks(blocks, 16) == padded


def test_steps_are_padded_by_little() -> None:
    for tokens in range(1, 5000):
        padded = padded_tokens(tokens)
        assert tokens <= padded < max(tokens + 16, tokens * 9 / 8 + 1) and padded_tokens(padded) == padded
    assert len({padded_tokens(tokens) for tokens in range(1, 4097)}) < 60


def test_buffers_fill_what_is_left(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    buffers = PackedBuffers(engine.device, StepSize(6, 4, 3, 4))
    for array in buffers.arrays.values():
        array[...] = 77
    buffers.fill(
        PackedInputs(
            input_ids=np.array([5, 6, 7]),
            positions=np.array([0, 1, 9]),
            query_start_loc=np.array([0, 2, 3], np.int32),
            seq_lens=np.array([2, 10], np.int32),
            block_table=np.array([[3, -1], [4, 5]], np.int32),
            slot_mapping=np.array([6, 7, 11], np.int32),
            state_indices=np.array([1, 0], np.int32),
            logits_indices=np.array([2], np.int32),
        )
    )
    found = {name: array.tolist() for name, array in buffers.arrays.items()}
    assert found == {
        "input_ids": [5, 6, 7, 0, 0, 0],
        "positions": [0, 1, 9, 0, 0, 0],
        "query_start_loc": [0, 2, 3, 3, 3],
        "seq_lens": [2, 10, 0, 0],
        "block_table": [[3, -1, -1], [4, 5, -1], [-1, -1, -1], [-1, -1, -1]],
        "slot_mapping": [6, 7, 11, -1, -1, -1],
        "state_indices": [1, 0, -1, -1],
        "logits_indices": [2, 0, 0, 0],
    }
    assert buffers.tensors["block_table"].tolist() == found["block_table"]


def test_rows_are_put_between_short_and_long_ones(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    buffers = PackedBuffers(engine.device, StepSize(4, 5, 2, 1))
    buffers.fill(
        PackedInputs(
            input_ids=np.array([5, 6, 7]),
            positions=np.array([9, 0, 1]),
            query_start_loc=np.array([0, 1, 3], np.int32),
            seq_lens=np.array([10, 2], np.int32),
            block_table=np.array([[4, 5], [3, -1]], np.int32),
            slot_mapping=np.array([6, 7, 11], np.int32),
            state_indices=np.array([1, 0], np.int32),
            logits_indices=np.array([2], np.int32),
        ),
        split=(1, 2),
    )
    found = {name: array.tolist() for name, array in buffers.arrays.items()}
    assert found["query_start_loc"] == [0, 1, 1, 1, 3, 3]
    assert found["seq_lens"] == [10, 0, 0, 2, 0] and found["state_indices"] == [1, -1, -1, 0, -1]
    assert found["block_table"] == [[4, 5], [-1, -1], [-1, -1], [3, -1], [-1, -1]]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_copies_are_arrays_and_come_back(dtype: DType, artifacts: ArtifactCache) -> None:
    folder = artifacts.get("nemotron_h", "bfloat16", layout="paged", dtype=dtype).folder
    engine = TorchPagedEngine(folder, device="cpu")
    engine.allocate_pools(PoolSizes(4, 4, 3))
    for index, pool in enumerate(engine.pools.tensors.values()):
        pool.copy_(torch.arange(pool.numel()).reshape(pool.shape) % 100 + index)
    before = {name: engine.read_pool(name) for name in engine.pools.tensors}
    arrays = engine.arrays_from_copy(engine.swap_out([2, 0], [1]))
    assert all(arrays[b.name].dtype == b.dtype.numpy for b in engine.config.bindings.states)
    engine.fill_pools(0.0)
    engine.swap_in(engine.copy_from_arrays(arrays, 2, 1), [3, 1], [0])
    for name, expected in before.items():
        found = engine.read_pool(name)
        if name.startswith("kv"):
            np.testing.assert_array_equal(found[:, [3, 1]], expected[:, [2, 0]])
        else:
            np.testing.assert_array_equal(found[0], expected[1])
    with pytest.raises(EngineError, match="expected an array"):
        engine.copy_from_arrays(arrays, 1, 1)


def test_what_does_not_fit_is_refused(hybrid: Exported, artifacts: ArtifactCache) -> None:
    with pytest.raises(EngineError, match="expected layout paged, found dense"):
        TorchPagedEngine(artifacts.get("nemotron_h", "float32").folder)
    with pytest.raises(EngineError, match="expected layout dense, found paged"):
        TorchEngine(hybrid.folder)
    engine = TorchPagedEngine(hybrid.folder, device="cpu")
    with pytest.raises(EngineError, match="expected pools, found none"):
        engine.zero_slots([0])
    engine.allocate_pools(PoolSizes(2, 4, 1))
    arrays = {
        "input_ids": np.array([engine.config.vocab_size]),
        "positions": np.array([0]),
        "query_start_loc": np.array([0, 1], np.int32),
        "seq_lens": np.array([1], np.int32),
        "block_table": np.array([[0]], np.int32),
        "slot_mapping": np.array([0], np.int32),
        "state_indices": np.array([0], np.int32),
        "logits_indices": np.array([0], np.int32),
    }
    with pytest.raises(EngineError, match="expected token ids from 0 to"):
        engine.step(PackedInputs(**arrays))
    assert engine.free_memory() is None and engine.memory_use()["weights mapped from files"] > 0
