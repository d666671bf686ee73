"""Any number of a row's tokens turns out right: states held and advanced, or kept after each token, are those of the
right tokens alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifact.errors import EngineError
from runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from runtime.engines.paged import PackedInputs, PoolSizes
from tests.support.artifacts import ArtifactCache

MOST, ROWS, BLOCK = 3, 3, 8
BLOCKS_OF_ROW, COLUMNS = 5, 1 + MOST
SIZES = PoolSizes(ROWS * BLOCKS_OF_ROW, BLOCK, ROWS * COLUMNS)
# Of each row in one step: candidate tokens, and the share of them that is right.
Pattern = list[tuple[int, float]]


@dataclass
class Rows:
    """Sequences in pools of ``engine``; tokens of each that were right so far."""

    engine: OnnxRuntimePagedEngine
    tokens: list[list[int]] = field(default_factory=lambda: [[] for _ in range(ROWS)])
    slots: np.ndarray = field(default_factory=lambda: np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS))

    def __post_init__(self) -> None:
        self.engine.allocate_pools(SIZES)
        self.engine.fill_pools(np.nan)
        self.engine.zero_slots(self.slots[:, 0].tolist())

    def inputs(self, new: Sequence[Sequence[int]]) -> PackedInputs:
        """``new`` tokens of each row, at least one."""
        starts, counts = [len(tokens) for tokens in self.tokens], [len(tokens) for tokens in new]
        bounds = np.array([0, *np.cumsum(counts)], np.int32)
        positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])
        first = np.repeat(np.arange(ROWS) * BLOCKS_OF_ROW * BLOCK, counts)
        return PackedInputs(
            np.concatenate(new).astype(np.int64),
            positions.astype(np.int64),
            bounds,
            (np.array(starts) + counts).astype(np.int32),
            np.arange(ROWS * BLOCKS_OF_ROW, dtype=np.int32).reshape(ROWS, -1),
            (first + positions).astype(np.int32),
            self.slots[:, 0].copy(),
            np.arange(bounds[-1], dtype=np.int32),
        )

    def accept(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> None:
        for tokens, more, count in zip(self.tokens, new, right, strict=True):
            tokens.extend(more[:count])

    def hold(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> np.ndarray:
        """A step that holds the states of rows with candidates, and what of them is right."""
        held = np.array([len(tokens) > 1 for tokens in new])
        logits = self.engine.step(replace(self.inputs(new), held=held)).copy()
        self.engine.advance(np.where(held, right, 0))
        self.accept(new, right)
        return logits

    def keep(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> np.ndarray:
        """The same with a state after each token, of which the right one becomes the row's."""
        accepted = np.ones(ROWS, np.int32)
        step = replace(self.inputs(new), state_indices=self.slots.copy(), num_accepted_tokens=accepted)
        logits = self.engine.step(step).copy()
        for slots, count in zip(self.slots, right, strict=True):
            slots[[0, count - 1]] = slots[[count - 1, 0]]
        self.accept(new, right)
        return logits

    def states(self) -> Iterator[np.ndarray]:
        for spec in self.engine.config.bindings.states:
            if not spec.grows:
                yield self.engine.read_pool(spec.name)[self.slots[:, 0]]


@pytest.fixture(scope="module", params=["nemotron_h", "qwen3_next"])
def engine(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> OnnxRuntimePagedEngine:
    folder = artifacts.get(request.param, "float32", layout="paged", speculative_tokens=MOST).folder
    return OnnxRuntimePagedEngine(folder, threads=1)


STEP = st.lists(st.tuples(st.integers(0, MOST), st.floats(0, 1)), min_size=ROWS, max_size=ROWS)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, min_size=1, max_size=5), st.integers(0, 1000))
def test_states_are_those_of_the_right_tokens_alone(
    engine: OnnxRuntimePagedEngine, pattern: list[Pattern], seed: int
) -> None:
    found = {}
    for way in ("hold", "keep"):
        rng, rows = np.random.default_rng(seed), Rows(engine)
        for step in pattern:
            new = [rng.integers(0, 50, 1 + tried).tolist() for tried, _ in step]
            right = [1 + round(share * tried) for tried, share in step]
            assert np.isfinite(getattr(rows, way)(new, right)).all()
        found[way] = [*rows.states()]
    alone = Rows(engine)
    engine.step(alone.inputs(rows.tokens))
    for way, states in found.items():
        for state, expected in zip(states, alone.states(), strict=True):
            assert np.linalg.norm(state - expected) <= 1e-5 * np.linalg.norm(expected), way


def test_logits_are_those_of_states_kept_and_nothing_moves_before_the_advance(engine: OnnxRuntimePagedEngine) -> None:
    new, results = [[3, 4, 5, 6], [7], [8, 9]], []
    for way in ("hold", "keep"):
        rows = Rows(engine)
        rows.hold([[1], [2, 3], [4]], [1, 2, 1])
        results.append(getattr(rows, way)(new, [2, 1, 1]))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)
    rows = Rows(engine)
    rows.keep([[1], [2], [4]], [1, 1, 1])
    before = [*rows.states()]
    held = np.array([True, False, True])
    # As after a failure: the states of a step that nobody advances are those before it, also behind the next step.
    for _ in range(2):
        engine.step(replace(rows.inputs(new), held=held))
        for state, old in zip(rows.states(), before, strict=True):
            np.testing.assert_array_equal(state[held], old[held])
    engine.advance(np.array([4, 0, 0]))
    for state, old in zip(rows.states(), before, strict=True):
        assert not np.array_equal(state[0], old[0])
        np.testing.assert_array_equal(state[2], old[2])


def test_a_token_of_a_held_row_takes_few_bytes(engine: OnnxRuntimePagedEngine) -> None:
    config = engine.config
    numbers = sum(layer.conv_dim + layer.num_heads for layer in config.recurrent_layers)
    # Besides the convolution's inputs and the decays: a row and a column of states.
    assert 4 * numbers < engine.held_token_bytes < engine.slot_bytes / 3


def test_what_cannot_be_held_or_advanced_is_refused(engine: OnnxRuntimePagedEngine) -> None:
    rows = Rows(engine)
    long = [list(range(engine.most_held_tokens + 1)), [1], [2]]
    step = rows.inputs(long)
    with pytest.raises(EngineError, match=r"held of 3 rows of at most 8 tokens .* and rows of up to 9"):
        engine.step(replace(step, held=np.array([True, False, False])))
    with pytest.raises(EngineError, match=r"held of 3 rows .* found \[2\]"):
        engine.step(replace(step, held=np.array([True, False])))
    engine.step(replace(rows.inputs([[1, 2], [1], [2]]), held=np.array([True, False, False])))
    with pytest.raises(EngineError, match="row 0: expected 0 to 2 tokens to advance by, found 3"):
        engine.advance(np.array([3, 0, 0]))


def test_an_engine_that_holds_nothing_says_so(artifacts: ArtifactCache) -> None:
    folder = artifacts.get("nemotron_h", "float32", layout="paged", speculative_tokens=MOST).folder
    engine = PortablePagedEngine(folder, threads=1)
    assert engine.most_held_tokens == engine.held_token_bytes == 0
    with pytest.raises(EngineError, match="the onnxruntime-portable engine holds no states"):
        engine.advance(np.array([1]))
