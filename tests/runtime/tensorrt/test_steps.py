"""Whole steps with real numbers: the engine over a fake device, whose stand-in of TensorRT computes the real graph."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, RequestError
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts, open_engine
from tests.support.effort import sample

# Tokens that each of three rows takes per step: ragged prefill, a later chunk, decode of all rows and of some, a
# step without active rows, and enough decode steps to run directly, to be captured and to be replayed.
STEPS = ((7, 0, 5), (3, 4, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 0, 1), (1, 1, 1), (6, 2, 2), (1, 1, 1), (1, 1, 1))
PLANS = {
    "base": SMALL,
    "all_logits": replace(SMALL, all_logits=True),
    "no_attention": replace(SMALL, layers="m"),
    "no_mamba": replace(SMALL, layers="a"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_ragged_steps_match_a_recomputation_from_the_first_token(
    plan: Plan, built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(plan)
    opened = open_engine(artifact, monkeypatch)
    engine, made = opened.engine, artifact.made
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, VOCAB, 32) for _ in range(3)]
    states, done = engine.allocate_states(3, 16), [0, 0, 0]
    for counts in STEPS:
        rows = [tokens[r][done[r] : done[r] + n] for r, n in enumerate(counts)]
        logits = engine.step(step_inputs(rows, done, padding=VOCAB - 1), states)
        for r, n in enumerate(counts):
            if n:
                expected = made.logits(tokens[r][: done[r] + n])[done[r] :]
                found = logits[r, :n] if plan.all_logits else logits[r]
                assert relative_error(found, expected if plan.all_logits else expected[-1]) < TOLERANCE
        done = [d + n for d, n in zip(done, counts, strict=True)]
    for r in range(3):
        for name, expected in made.run(tokens[r][: done[r]])[1].items():
            assert relative_error(states.buffers[name].read_row(r, done[r]), expected) < TOLERANCE, name
    opened.close()


@pytest.mark.parametrize("dtype", sample((DType.FLOAT16, DType.BFLOAT16), on_push=(DType.BFLOAT16,)))
def test_states_have_the_types_of_the_artifact(
    dtype: DType, built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(replace(SMALL, dtype=dtype))
    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 9)
    states = opened.engine.allocate_states(1, 16)
    opened.engine.step(step_inputs([tokens[:8]], [0]), states)
    logits = opened.engine.step(step_inputs([tokens[8:]], [8]), states)
    # One rounding of every state to its own type, 2**-11 or 2**-8.
    tolerance = 3e-3 if dtype is DType.FLOAT16 else 2e-2
    assert relative_error(logits[0], artifact.made.logits(tokens)[-1]) < tolerance
    assert {b.spec.dtype for n, b in states.buffers.items() if "recurrent" not in n} == {dtype}
    assert states.buffers["past_key_0"].read_row(0, 9).dtype == dtype.numpy
    opened.close()


def test_logits_are_copied_on_request(built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    states = opened.engine.allocate_states(1, 16)
    tokens = np.arange(6)
    first = opened.engine.submit(step_inputs([tokens[:5]], [0]), states)
    assert opened.memory.pending
    assert relative_error(first.read()[0], artifact.made.logits(tokens[:5])[-1]) < TOLERANCE
    assert not opened.memory.pending
    pending = opened.engine.submit(step_inputs([tokens[5:]], [5]), states)
    with pytest.raises(EngineError, match="read them before the next step"):
        first.read()
    assert relative_error(pending.read()[0], artifact.made.logits(tokens)[-1]) < TOLERANCE
    opened.engine.close()
    with pytest.raises(EngineError, match="they are gone"):
        pending.read()


def test_limits_are_refused_with_what_was_found(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(built_artifacts.get(SMALL), monkeypatch)
    engine = opened.engine
    assert (engine.max_batch_size, engine.max_seq_len, engine.max_step_tokens) == (3, 48, 48)
    with pytest.raises(RequestError, match=r"1 to 3 rows in a batch, found 4: .* larger `max_batch_size`"):
        engine.allocate_states(4, 8)
    with pytest.raises(RequestError, match=r"at most 48 tokens in one row, found 49: .* larger `max_seq_len`"):
        engine.allocate_states(1, 49)
    states = engine.allocate_states(1, 8)
    assert states.max_seq == 48
    states.reserve(48)
    with pytest.raises(RequestError, match="found 49"):
        states.reserve(49)
    for rows, past, words in (
        ([np.arange(2)], [47], "within 48 positions"),
        ([np.arange(2)] * 2, [0, 0], "lengths"),
        ([np.arange(49)], [0], "1 to 48 tokens per row in one step, found 49: feed them in chunks"),
    ):
        with pytest.raises(EngineError, match=words):
            engine.step(step_inputs(rows, past), states)
    other = open_engine(built_artifacts.get(SMALL), monkeypatch)
    with pytest.raises(EngineError, match="states allocated by this engine"):
        other.engine.step(step_inputs([np.arange(2)], [0]), states)
    other.close()
    opened.close()


def test_a_closed_engine_says_so(built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_engine(built_artifacts.get(SMALL), monkeypatch)
    states = opened.engine.allocate_states(1, 8)
    opened.engine.step(step_inputs([np.arange(2)], [0]), states)
    opened.close()
    with pytest.raises(EngineError, match="closed"):
        opened.engine.step(step_inputs([np.arange(2)], [2]), states)
    with pytest.raises(EngineError, match="closed"):
        opened.engine.allocate_states(1, 8)
    with pytest.raises(EngineError, match="these states are gone"):
        states.buffers["conv_state_0"].read_row(0)


def test_states_that_are_dropped_after_the_engine_do_no_harm(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(built_artifacts.get(SMALL), monkeypatch)
    states = opened.engine.allocate_states(1, 8)
    opened.close()
    del states
    gc.collect()
    opened.memory.check_nothing_left()
