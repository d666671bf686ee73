"""Steps of one row, prepared by earlier ones, give what steps of their own give, bit for bit, also after others."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import QUERY_START_LOC, STATE_INDICES
from hybridge.runtime.engines.onnxruntime import paged_engine
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.one_row_steps import OneRowSteps
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun, paged_runs, run_feeds
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from tests.support.artifacts import ArtifactCache

SIZES = PoolSizes(num_blocks=24, block_size=4, num_slots=5)
# Rows by their slots. The last two rounds are of another row, and of one with the first one's slot and other blocks.
TABLES = np.random.default_rng(0).permutation(24).reshape(3, 8).astype(np.int32)
# Row, and draft tokens of each round with how many of them are accepted.
ROUNDS = [(0, 0, 0), (0, 3, 3), (0, 3, 1), (0, 0, 0), (0, 3, 0), (0, 3, 3), (0, 1, 1), (0, 0, 0), (0, 3, 2), (1, 0, 0)]
ROUNDS += [(0, 3, 3), (0, 0, 0), (2, 0, 0), (2, 3, 2), (2, 3, 1), (2, 0, 0)]
SLOTS = [3, 1, 3]


def step_of(tokens: np.ndarray, row: int, start: int, has_state: bool) -> PackedInputs:
    """Feed ``tokens`` of a row from position ``start`` on; all of several wait."""
    count = len(tokens)
    positions = np.arange(start, start + count)
    blocks, offsets = np.divmod(positions, SIZES.block_size)
    waits = np.array([True]) if has_state and count > 1 else None
    return PackedInputs(
        tokens,
        positions,
        np.array([0, count], np.int32),
        np.array([start + count], np.int32),
        TABLES[row : row + 1, : blocks[-1] + 1],
        (TABLES[row, blocks] * SIZES.block_size + offsets).astype(np.int32),
        np.array(SLOTS[row : row + 1], np.int32),
        np.arange(count, dtype=np.int32),
        waits,
    )


def outcome(engine: OnnxRuntimePagedEngine) -> list[np.ndarray]:
    """The logits of all rounds, and the pools after them; their unused parts are NaN at first."""
    has_state = bool(engine.config.recurrent_layers)
    if has_state:
        engine.prepare_rollback(1, 4)
    engine.allocate_pools(SIZES)
    engine.fill_pools(np.nan)
    draw, found, lengths = np.random.default_rng(1), [], [0, 0, 0]
    for row, draft_tokens, accepted in ROUNDS:
        if not lengths[row]:
            engine.zero_slots(SLOTS[row : row + 1])
        tokens = draw.integers(0, engine.config.vocab_size, 1 + draft_tokens)
        found.append(engine.step(step_of(tokens, row, lengths[row], has_state)).copy())
        if has_state and draft_tokens:
            engine.advance(np.array([1 + accepted], np.int32))
        lengths[row] += 1 + accepted
    return [*found, *(engine.read_pool(spec.name).copy() for spec in engine.pool_specs)]


@pytest.mark.parametrize(
    ("family", "one_session"),
    [("nemotron_h", False), ("llama", True), pytest.param("kimi_linear", False, marks=pytest.mark.slow)],
)
def test_prepared_steps_give_what_steps_of_their_own_give(
    artifacts: ArtifactCache, family: str, one_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """one_session: single tokens run in the session for prompts, as those of large quantised models."""
    if one_session:
        monkeypatch.setattr(paged_engine, "MOST_BLOCK_BYTES", -1)
    again, run_again = [], PagedSession.run_again
    monkeypatch.setattr(PagedSession, "run_again", lambda session: (again.append(1), run_again(session)))
    folder = artifacts.get(family, "float32", layout="paged", max_batch_size=6).folder
    found = outcome(OnnxRuntimePagedEngine(folder, threads=1))
    assert len(again) == 9
    monkeypatch.setattr(OneRowSteps, "can_follow", lambda *_: False)
    expected = outcome(OnnxRuntimePagedEngine(folder, threads=1))
    assert len(again) == 9
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Fed:
    """The arrays of a session whose graph reads every input."""

    is_repeatable, runs = True, 1

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays, self.inputs = {name: array.copy() for name, array in arrays.items()}, frozenset(arrays)

    def fed(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def feed(self, name: str, array: np.ndarray) -> None:
        self.arrays[name] = array

    def run_again(self) -> None:
        pass


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("shape", [KvShape(2, 0), KvShape(1, 0, parts=1)])
def test_the_arrays_are_those_of_a_step_of_its_own(shape: KvShape, tokens: int) -> None:
    def given(start: int) -> tuple[PackedInputs, PagedRun, dict[str, np.ndarray]]:
        inputs = step_of(np.arange(tokens) + start, 0, start, False)
        (run,) = paged_runs(inputs, alone=[0])
        return inputs, run, run_feeds(inputs, run, [shape], SIZES, {shape.bias})

    inputs, run, first = given(2)
    session, pools = Fed(first), ArrayPools((), {}, SIZES)
    assert OneRowSteps.can_follow(inputs, run, session, [shape])  # type: ignore[arg-type]
    steps = OneRowSteps(inputs, session, np.zeros((tokens, 1)), [shape], pools, None)  # type: ignore[arg-type]
    for start in (2 + tokens, 2 + 2 * tokens, 9):
        inputs, _, expected = given(start)
        assert steps.step(inputs) is not None
        for name in expected.keys() - {QUERY_START_LOC, STATE_INDICES}:
            np.testing.assert_array_equal(session.arrays[name], expected[name], err_msg=name)


@pytest.mark.parametrize("shape", [KvShape(2, 0), KvShape(1, 0, parts=1)])
def test_tokens_that_follow_in_their_block_change_only_what_they_must(shape: KvShape) -> None:
    """Steps that pass their object again, with the next token, do not look at its other arrays."""

    def given(start: int) -> tuple[PackedInputs, dict[str, np.ndarray]]:
        inputs = step_of(np.array([start + 20]), 0, start, False)
        (run,) = paged_runs(inputs)
        return inputs, run_feeds(inputs, run, [shape], SIZES, {shape.bias})

    inputs, first = given(2)
    session = Fed(first)
    steps = OneRowSteps(inputs, session, np.zeros((1, 1)), [shape], ArrayPools((), {}, SIZES), None)  # type: ignore[arg-type]
    for start in range(3, 11):
        fresh, expected = given(start)
        if start % SIZES.block_size:
            for name in ("input_ids", "positions", "seq_lens", "slot_mapping"):
                getattr(inputs, name)[:] = getattr(fresh, name)
        else:
            inputs = fresh
        assert (steps.repeat(inputs) is not None) == bool(start % SIZES.block_size)
        if not start % SIZES.block_size:
            assert steps.step(inputs) is not None
        for name in expected.keys() - {QUERY_START_LOC, STATE_INDICES}:
            np.testing.assert_array_equal(session.arrays[name], expected[name], err_msg=f"{name} {start}")
    assert steps.repeat(fresh) is None


def test_a_step_with_wrong_slots_is_no_prepared_one(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = artifacts.get("llama", "float32", layout="paged", max_batch_size=6).folder
    engine = OnnxRuntimePagedEngine(folder, threads=1)
    engine.allocate_pools(SIZES)
    engine.step(step_of(np.array([1]), 0, 0, False))
    wrong = step_of(np.array([2]), 0, 1, False)
    wrong.slot_mapping[0] = SIZES.num_blocks * SIZES.block_size
    with pytest.raises(EngineError, match="slot_mapping"):
        engine.step(wrong)
    wrong = step_of(np.array([2]), 0, 1, False)
    wrong.block_table[0, 0] = SIZES.num_blocks
    with pytest.raises(EngineError, match="block_table"):
        engine.step(wrong)
