"""Rows with draft tokens share a run: any number of rows and tokens, slots in any order, some never advanced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredStates
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.onnxruntime.row_arrays import RowArrays
from hybridge.runtime.engines.packed_inputs import PackedInputs
from tests.support.artifacts import ArtifactCache
from tests.support.deferred_rows import Rows, assert_alone
from tests.support.effort import examples, sample
from tests.support.tiny_models import EXPERTS

MOST_ROWS, MOST_TOKENS = 5, 8
# Of the logits of one token, as in test_paged_engine: where there are experts, steps without draft tokens differ from
# the same tokens at once by up to 1.3e-5, these by 1.5e-5.
TOLERANCE = 5e-5
# Each layer of the tiny model with experts multiplies rounding by about ten: four of them pass the 1e-5 of states,
# these reach 4e-6 at most in 650 histories.
THREE_LAYERS = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
FAMILIES = {
    "nemotron_h": {},
    "mamba2": {},
    "qwen3_next with experts": EXPERTS["qwen3_next"] | THREE_LAYERS,
    "granitemoehybrid with experts": EXPERTS["granitemoehybrid"],
    "olmo_hybrid": {},
    "qwen3_5_text": {},
}


# On push each recurrent operator, and experts.
PUSH = ("nemotron_h", "qwen3_next with experts", "olmo_hybrid")


@pytest.fixture(scope="module", params=sample(FAMILIES, on_push=PUSH))
def engine(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> OnnxRuntimePagedEngine:
    options = {"layout": "paged", "max_batch_size": 6}
    family = str(request.param).split()[0]
    return OnnxRuntimePagedEngine(
        artifacts.get(family, "float32", FAMILIES[request.param], **options).folder, threads=1
    )


@pytest.fixture(scope="module")
def hybrid(artifacts: ArtifactCache) -> OnnxRuntimePagedEngine:
    folder = artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6).folder
    return OnnxRuntimePagedEngine(folder, threads=1)


def slots_of(rows: int, spare: int, seed: int) -> np.ndarray:
    """[rows, 1 + spare] of any slots; neighbours where ``seed`` is 0 and there are no spare ones."""
    slots = np.arange(rows * (1 + spare), dtype=np.int32)
    return (np.random.default_rng(seed).permutation(slots) if seed else slots).reshape(rows, -1)


# Of a step: tokens of each row, and what share of them is right.
STEP = st.lists(st.tuples(st.integers(1, MOST_TOKENS), st.floats(0, 1)), min_size=MOST_ROWS, max_size=MOST_ROWS)


@settings(deadline=None, max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, MOST_ROWS), st.integers(0, 1), st.integers(0, 3), st.lists(STEP, min_size=1, max_size=4))
def test_rows_are_those_of_their_right_tokens_alone(
    engine: OnnxRuntimePagedEngine, count: int, spare: int, seed: int, steps: list[list[tuple[int, float]]]
) -> None:
    rng, rows = np.random.default_rng(seed), Rows(engine, slots_of(count, spare, seed))
    found: list[list[np.ndarray]] = [[] for _ in range(count)]
    for step in steps:
        new = [rng.integers(0, 50, tokens).tolist() for tokens, _ in step[:count]]
        right = [1 + round(share * (tokens - 1)) for tokens, share in step[:count]]
        logits, ends = rows.check(new, right), np.cumsum([len(tokens) for tokens in new])
        assert np.isfinite(logits).all()
        for row, end in enumerate(ends):
            found[row].append(logits[end - len(new[row]) :][: right[row]])
    states = [state.copy() for state in rows.states()]
    alone = Rows(engine, rows.slots)
    expected = alone.engine.step(alone.inputs(rows.tokens))
    assert_close(np.concatenate([part for parts in found for part in parts]), expected)
    assert_alone(rows, states)


def test_a_row_alone_is_that_of_its_right_tokens(engine: OnnxRuntimePagedEngine) -> None:
    rows, found = Rows(engine, slots_of(1, 1, 0)), []
    for new, right in (([1, 2, 3, 4, 5], 2), ([9, 8], 2), ([7, 6, 5, 4, 3], 5), ([11, 12], 1)):
        found.append(rows.check([new], [right])[:right])
    states = [state.copy() for state in rows.states()]
    assert_close(np.concatenate(found), assert_alone(rows, states))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert (np.linalg.norm(found - expected, axis=1) <= TOLERANCE * np.linalg.norm(expected, axis=1)).all()


def begun(engine: OnnxRuntimePagedEngine, slots: np.ndarray) -> tuple[Rows, PackedInputs]:
    """Four rows, and a step in which the first and the third have draft tokens."""
    rows = Rows(engine, slots)
    rows.check([[1], [2], [3], [4]], [1, 1, 1, 1])
    return rows, replace(rows.inputs([[5, 6, 7], [8], [9, 10], [11]]), deferred=np.array([True, False, True, False]))


@pytest.mark.parametrize("spare", [0, 1], ids=["neighbours", "gaps"])
def test_rows_without_draft_tokens_have_already_advanced(hybrid: OnnxRuntimePagedEngine, spare: int) -> None:
    """Readers of the pools after the step see it, and deferred rows can be advanced after that."""
    slots = slots_of(4, spare, spare)
    rows, step = begun(hybrid, slots)
    hybrid.step(step)
    # As the prefix cache does between a step and its advance; here to and from host memory.
    copy = hybrid.swap_out([], [int(slots[1, 0])])
    hybrid.advance(np.array([2, 0, 1, 0]))
    found = [state.copy() for state in rows.states()]
    rows.accept([[5, 6, 7], [8], [9, 10], [11]], [2, 1, 1, 1])
    hybrid.zero_slots([int(slots[1, 0])])
    hybrid.swap_in(copy, [], [int(slots[1, 0])])
    for state, before in zip(rows.states(), found, strict=True):
        np.testing.assert_array_equal(state[1], before[1])
    assert_alone(rows, found)


def test_rows_with_draft_tokens_are_as_before_until_they_advance(hybrid: OnnxRuntimePagedEngine) -> None:
    for seed in (0, 1):
        rows, step = begun(hybrid, slots_of(4, 0, seed))
        before = [state.copy() for state in rows.states()]
        hybrid.step(step)
        moved = [not np.array_equal(s[[1, 3]], b[[1, 3]]) for s, b in zip(rows.states(), before, strict=True)]
        assert all(moved)
        # Another step, without advancing the rows; and none of its own is advanced by 0.
        hybrid.step(replace(step, deferred=np.array([True, True, True, True])))
        hybrid.advance(np.array([0, 1, 0, 0]))
        for state, old in zip(rows.states(), before, strict=True):
            np.testing.assert_array_equal(state[[0, 2]], old[[0, 2]])


def test_a_refused_number_loses_no_row_that_was_not_deferred(hybrid: OnnxRuntimePagedEngine) -> None:
    rows, step = begun(hybrid, slots_of(4, 0, 0))
    before = [state.copy() for state in rows.states()]
    hybrid.step(step)
    with pytest.raises(EngineError, match="row 1: expected 0 to 0 tokens to advance by, found 1"):
        hybrid.advance(np.array([1, 1, 1, 0]))
    for state, old in zip(rows.states(), before, strict=True):
        np.testing.assert_array_equal(state[[0, 2]], old[[0, 2]])
        assert not np.array_equal(state[1], old[1])
    with pytest.raises(EngineError, match="row 0: expected 0 to 0 tokens to advance by, found 1"):
        hybrid.advance(np.array([1, 0, 0, 0]))


def test_a_run_that_fails_changes_no_state_of_its_rows(
    hybrid: OnnxRuntimePagedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, step = begun(hybrid, slots_of(4, 0, 0))
    before = [state.copy() for state in rows.states()]

    def failing(*arguments: object, **options: object) -> None:
        raise EngineError("ONNX Runtime failed in a step: out of luck")

    with monkeypatch.context() as patched:
        patched.setattr(PagedSession, "run", failing)
        with pytest.raises(EngineError, match="out of luck"):
            hybrid.step(step)
    hybrid.advance(np.zeros(4, np.int32))
    for state, old in zip(rows.states(), before, strict=True):
        np.testing.assert_array_equal(state, old)
    hybrid.step(step)
    hybrid.advance(np.array([1, 0, 2, 0]))
    found = [state.copy() for state in rows.states()]
    rows.accept([[5, 6, 7], [8], [9, 10], [11]], [1, 1, 2, 1])
    assert_alone(rows, found)


def test_a_draft_token_that_is_not_finite_reaches_no_state(hybrid: OnnxRuntimePagedEngine) -> None:
    """What wrong tokens left behind is not even multiplied with 0."""
    rows, step = begun(hybrid, slots_of(4, 0, 0))
    hybrid.step(step)
    deferred = hybrid._deferred
    assert isinstance(deferred, DeferredStates) and deferred._batch is not None
    for array, _ in deferred._batch.stored.values():
        for row, right in enumerate((1, 1, 1, 1)):
            array[row, right:] = np.nan
    hybrid.advance(np.array([1, 0, 1, 0]))
    found = [state.copy() for state in rows.states()]
    rows.accept([[5, 6, 7], [8], [9, 10], [11]], [1, 1, 1, 1])
    assert_alone(rows, found)


def test_one_session_runs_rows_of_any_lengths(hybrid: OnnxRuntimePagedEngine) -> None:
    rows = Rows(hybrid, slots_of(4, 0, 0))
    for lengths in ([2, 1, 1, 1], [8, 8, 3, 1], [1, 1, 1, 5], [3, 3, 3, 3]):
        rows.check([[1] * length for length in lengths], [1] * 4)
    ragged = [key for key in hybrid._sessions if key.form is PagedForm.RAGGED]
    assert [(key.tokens, key.defers) for key in ragged] == [(0, True)]


def test_steps_without_recurrent_states_share_a_run_too(artifacts: ArtifactCache) -> None:
    folder = artifacts.get("llama", "float32", layout="paged", max_batch_size=6).folder
    engine = OnnxRuntimePagedEngine(folder, threads=1)
    new = [[1, 2, 3], [4], list(range(5, 12)), [12], list(range(20, 31))]
    rows = Rows(engine, np.full((5, 1), -1, np.int32))
    found = engine.step(rows.inputs(new)).copy()
    keys = [(key.form, key.tokens) for key in engine._sessions]
    assert (PagedForm.RAGGED, 0) in keys
    for row, tokens in enumerate(new):
        alone = Rows(engine, np.full((1, 1), -1, np.int32))
        first = sum(map(len, new[:row]))
        expected = engine.step(alone.inputs([tokens]))
        assert_close(found[first : first + len(tokens)], expected)


def test_arrays_of_other_axes_begin_with_the_same_content() -> None:
    memory = RowArrays({"a": (2, 3), "b": ()})
    first, _ = memory.arrays(1, 5)["a"]
    first[...] = np.arange(30).reshape(1, 5, 2, 3)
    shorter, value = memory.arrays(1, 2)["a"]
    np.testing.assert_array_equal(shorter, first[:, :2])
    np.testing.assert_array_equal(value.numpy(), shorter)
    assert memory.arrays(1, 5)["a"][0] is first
    larger = memory.arrays(3, 4)
    assert larger["a"][0].shape == (3, 4, 2, 3) and larger["b"][0].shape == (3, 4)
    assert memory.arrays(1, 5)["a"][0] is not first
