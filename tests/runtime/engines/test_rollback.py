"""Any number of a row's tokens turns out right: the states of deferred rows are those of the right tokens alone, on
every engine that takes back draft tokens and in every mode of its operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from tests.support.artifacts import ArtifactCache
from tests.support.deferred_rows import MOST, ROWS, Pattern, Rows, assert_alone
from tests.support.effort import examples, sample
from tests.support.versions import skip_without_delta_rule_kernels


def onnxruntime(folder: Path) -> PagedEngine:
    return OnnxRuntimePagedEngine(folder, threads=1)


def torch_cpu(folder: Path) -> PagedEngine:
    pytest.importorskip("torch", reason="the torch engine needs torch")
    from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

    return TorchPagedEngine(folder, device="cpu")


def portable(folder: Path) -> PagedEngine:
    return PortablePagedEngine(folder, threads=1)


ENGINES: dict[str, Callable[[Path], PagedEngine]] = {"onnxruntime": onnxruntime, "torch": torch_cpu}
CONV = "causal_conv1d"
FAMILIES = {"nemotron_h": "update_ssm_state", "qwen3_next": "gated_delta_rule"}
# Those, and families with a decay for each channel.
EVERY_DECAY = {**FAMILIES, "kimi_linear": "gated_delta_rule", "jamba": "selective_scan"}


@pytest.fixture(scope="module", params=[(family, name) for family in FAMILIES for name in ENGINES], ids="-".join)
def engine(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> PagedEngine:
    family, name = request.param
    folder = artifacts.get(family, "float32", layout="paged").folder
    return ENGINES[name](folder)


STEP = st.lists(st.tuples(st.integers(0, MOST), st.floats(0, 1)), min_size=ROWS, max_size=ROWS)


def test_nothing_moves_before_the_advance(engine: PagedEngine) -> None:
    engine.prepare_rollback(ROWS, 1 + MOST)
    new, rows = [[3, 4, 5, 6], [7], [8, 9]], Rows(engine)
    rows.check([[1], [2], [4]], [1, 1, 1])
    before = [*rows.states()]
    deferred = np.array([True, False, True])
    # As after a failure: the states of a step that nothing advances are those before it, also behind the next step.
    for _ in range(2):
        engine.step(replace(rows.inputs(new), deferred=deferred))
        for state, old in zip(rows.states(), before, strict=True):
            np.testing.assert_array_equal(state[deferred], old[deferred])
    engine.advance(np.array([4, 0, 0]))
    for state, old in zip(rows.states(), before, strict=True):
        assert not np.array_equal(state[0], old[0])
        np.testing.assert_array_equal(state[2], old[2])


MODES: tuple[Callable[[str], str | dict[str, str]], ...] = (
    lambda scan: {},
    lambda scan: SNAPSHOT,
    lambda scan: {CONV: SNAPSHOT},
    lambda scan: {scan: SNAPSHOT, CONV: REPLAY},
)


# On push every mode with each family and with each engine.
PAIRS = {
    ("nemotron_h", "onnxruntime"): (0, 3),
    ("nemotron_h", "torch"): (1, 2),
    ("qwen3_next", "onnxruntime"): (1, 2),
    ("qwen3_next", "torch"): (0, 3),
}


@pytest.mark.parametrize(
    ("family", "name", "index"),
    sample(
        itertools.product(EVERY_DECAY, ENGINES, range(len(MODES))),
        on_push=[(*pair, index) for pair, indices in PAIRS.items() for index in indices],
    ),
)
def test_every_mode_gives_the_states_of_the_right_tokens_alone(
    family: str, name: str, index: int, artifacts: ArtifactCache
) -> None:
    skip_without_delta_rule_kernels(family, name)
    engine, scan = ENGINES[name](artifacts.get(family, "float32", layout="paged").folder), EVERY_DECAY[family]
    mode = MODES[index](scan)
    engine.prepare_rollback(ROWS, 1 + MOST, mode)
    requested = dict.fromkeys((CONV, scan), mode) if isinstance(mode, str) else mode
    assert engine.rollback_modes == {scan: REPLAY, CONV: REPLAY, **requested}
    assert (engine.rollback_token_bytes == engine.slot_bytes) == (mode == SNAPSHOT)

    @settings(deadline=None, max_examples=examples(8), suppress_health_check=list(HealthCheck))
    @given(st.lists(STEP, min_size=1, max_size=4), st.integers(0, 1000))
    def any_pattern(pattern: list[Pattern], seed: int) -> None:
        rng, rows = np.random.default_rng(seed), Rows(engine)
        found: list[list[np.ndarray]] = [[] for _ in range(ROWS)]
        for step in pattern:
            new = [rng.integers(0, 50, 1 + tried).tolist() for tried, _ in step]
            right = [1 + round(share * tried) for tried, share in step]
            logits = np.split(rows.check(new, right), np.cumsum([len(tokens) for tokens in new])[:-1])
            for parts, part, count in zip(found, logits, right, strict=True):
                parts.append(part[:count])
        states = [*rows.states()]
        expected = assert_alone(rows, states)
        np.testing.assert_allclose(
            np.concatenate([p for parts in found for p in parts]), expected, rtol=1e-3, atol=1e-4
        )

    any_pattern()


def test_a_mode_of_an_operator_that_is_not_there_is_refused(engine: PagedEngine) -> None:
    with pytest.raises(EngineError, match=r"recurrent operators causal_conv1d, .*, found 'conv': name one of these"):
        engine.prepare_rollback(ROWS, 2, {"conv": REPLAY})


def test_a_token_of_a_deferred_row_takes_few_bytes(engine: PagedEngine) -> None:
    engine.prepare_rollback(ROWS, 1 + MOST)
    config = engine.config
    numbers = sum(layer.conv_dim + layer.num_heads for layer in config.recurrent_layers)
    # Besides the convolution's inputs and the decays: a row and a column of states.
    assert 4 * numbers < engine.rollback_token_bytes < engine.slot_bytes / 3


def test_what_cannot_be_deferred_or_advanced_is_refused(engine: PagedEngine) -> None:
    engine.prepare_rollback(ROWS, 1 + MOST)
    rows, most = Rows(engine), 1 + MOST
    step = rows.inputs([list(range(most + 1)), [1], [2]])
    with pytest.raises(
        EngineError, match=rf"deferred of 3 rows of at most {most} tokens.* and rows of up to {most + 1}"
    ):
        engine.step(replace(step, deferred=np.array([True, False, False])))
    with pytest.raises(EngineError, match=r"deferred of 3 rows .* found \[2\]"):
        engine.step(replace(step, deferred=np.array([True, False])))
    engine.step(replace(rows.inputs([[1, 2], [1], [2]]), deferred=np.array([True, False, False])))
    with pytest.raises(EngineError, match="row 0: expected 0 to 2 tokens to advance by, found 3"):
        engine.advance(np.array([3, 0, 0]))
    with pytest.raises(EngineError, match="row 0: expected 0 to 0 tokens to advance by, found 1"):
        engine.advance(np.array([1, 0, 0]))


def test_a_long_row_may_share_a_step_with_deferred_rows(engine: PagedEngine) -> None:
    engine.prepare_rollback(ROWS, 1 + MOST)
    rows, found = Rows(engine), []
    for new, right in (([[1], [2, 3], [4, 5, 6]], [1, 2, 1]), ([[7, 8], list(range(24)), [9, 8, 7]], [1, 24, 2])):
        deferred = np.array([1 < len(tokens) < 4 for tokens in new])
        assert np.isfinite(engine.step(replace(rows.inputs(new), deferred=deferred))).all()
        engine.advance(np.where(deferred, right, 0))
        rows.accept(new, right)
    found = [state.copy() for state in rows.states()]
    assert_alone(rows, found)


def test_the_portable_engine_has_snapshots(artifacts: ArtifactCache) -> None:
    """Of the artifact's own operators, in the form with a slot for the state after each token."""
    for family, scan in FAMILIES.items():
        engine = portable(artifacts.get(family, "float32", layout="paged").folder)
        engine.prepare_rollback(ROWS, 1 + MOST)
        assert engine.rollback_modes == {CONV: SNAPSHOT, scan: SNAPSHOT}
        rows = Rows(engine)
        for new, right in (([[1], [2, 3], [4, 5, 6]], [1, 2, 1]), ([[7, 8, 9, 1], [2, 3], [9] * 9], [2, 1, 9])):
            deferred = np.array([1 < len(tokens) < 5 for tokens in new])
            assert np.isfinite(engine.step(replace(rows.inputs(new), deferred=deferred))).all()
            engine.advance(np.where(deferred, right, 0))
            rows.accept(new, right)
        assert_alone(rows, [*rows.states()])
        with pytest.raises(EngineError, match="expected a mode other than 'replay' for causal_conv1d"):
            engine.prepare_rollback(ROWS, 1 + MOST, REPLAY)


def test_a_model_without_states_takes_back_nothing(artifacts: ArtifactCache) -> None:
    engine = portable(artifacts.get("llama", "float32", layout="paged").folder)
    assert engine.max_rollback_tokens == engine.rollback_token_bytes == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_snapshots_take_back_more_tokens_than_a_replay_can(family: str, artifacts: ArtifactCache) -> None:
    skip_without_delta_rule_kernels(family)
    engine = onnxruntime(artifacts.get(family, "float32", layout="paged").folder)
    with pytest.raises(EngineError, match="cannot replay for that many draft tokens: use 'snapshot', or fewer"):
        engine.prepare_rollback(ROWS, 12, REPLAY)
    engine.prepare_rollback(ROWS, 12)
    assert set(engine.rollback_modes.values()) == {SNAPSHOT} and engine.max_rollback_tokens >= 12
    rows = Rows(engine)
    rows.check([list(range(12)), [5], list(range(20, 29))], [11, 1, 1])
    assert_alone(rows, [*rows.states()])
