"""Whole steps with real numbers: the engine over a fake device, whose stand-in of TensorRT computes the real graph."""

from __future__ import annotations

import gc
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from hybridge.runtime.engines.tensorrt.dense_memory_plan import dense_memory_plan
from hybridge.runtime.engines.tensorrt.states import DeviceState
from hybridge.runtime.engines.tensorrt_network.parsed import network_options
from hybridge.trt_plugins.build.builder import build_engine
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.runtime.packed_steps import Row, packed_step
from tests.runtime.tensorrt.built import BuiltArtifacts, open_engine
from tests.support.effort import sample

# Tokens that each of three rows takes per step: ragged prefill, a later chunk, decode of all rows and of some, a
# step without active rows, and enough decode steps to run directly, to be captured and to be replayed.
STEPS = ((7, 0, 5), (3, 4, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 0, 1), (1, 1, 1), (6, 2, 2), (1, 1, 1), (1, 1, 1))
SMALL = Plan(max_seq_len=48, max_batch_size=3)
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


def test_decoding_is_replayed_without_tensorrt(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(8).integers(0, VOCAB, 20)
    states = opened.engine.allocate_states(1, 16)
    opened.engine.step(step_inputs([tokens[:4]], [0]), states)
    enqueues = []
    for position in range(4, 16):
        logits = opened.engine.step(step_inputs([tokens[position : position + 1]], [position]), states)
        assert relative_error(logits[0], artifact.made.logits(tokens[: position + 1])[-1]) < TOLERANCE
        enqueues.append(sum(context.enqueues for context in opened.stand_in.contexts))
    # Two turns of the buffers, each run directly once and captured once; from the fifth step on only launches.
    assert enqueues == [2, 3, 4, 5, *[5] * 8]
    assert [graph.launches for graph in opened.memory.graphs] == [5, 5]
    opened.close()


def test_a_model_whose_states_all_share_memory_has_one_graph(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(built_artifacts.get(PLANS["no_mamba"]), monkeypatch)
    states = opened.engine.allocate_states(2, 16)
    for position in range(6):
        opened.engine.step(step_inputs([np.array([3]), np.array([5])], [position, position]), states)
    assert [graph.launches for graph in opened.memory.graphs] == [5]
    opened.close()


def test_plugins_that_update_states_in_place_share_their_memory(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """engine.json says so, the engine itself knows of the caches only."""
    artifact = built_artifacts.get(SMALL)
    past = {str(b.replaced_by): b.name for b in artifact.config.bindings.states}
    bindings = [{**e, "aliases": past[e["name"]]} if e["name"] in past else e for e in artifact.record.bindings]
    quiet = {name: {"engine_aliases": None} for name in past if "key" not in name and "value" not in name}
    artifact = replace(artifact, record=replace(artifact.record, bindings=bindings))
    opened = open_engine(artifact, monkeypatch, changes=quiet)
    tokens, states = np.arange(9), opened.engine.allocate_states(1, 16)
    opened.engine.step(step_inputs([tokens[:3]], [0]), states)
    for position in range(3, 9):
        logits = opened.engine.step(step_inputs([tokens[position : position + 1]], [position]), states)
        assert relative_error(logits[0], artifact.made.logits(tokens[: position + 1])[-1]) < TOLERANCE
    assert [graph.launches for graph in opened.memory.graphs] == [5]
    opened.close()


def test_addresses_of_a_decode_context_are_set_once(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(built_artifacts.get(SMALL), monkeypatch, capturable=False)
    states = opened.engine.allocate_states(1, 16)
    for position in range(8):
        opened.engine.step(step_inputs([np.array([3])], [position]), states)
    tensors = len(opened.stand_in.record.bindings)
    _, *decode = opened.stand_in.contexts
    assert [context.address_calls for context in decode] == [tensors, tensors]
    assert [context.enqueues for context in decode] == [4, 4]
    kinds = opened.stand_in.trt.DynamicShapesKernelSpecializationStrategy
    found = [c.config.dynamic_shapes_kernel_specialization_strategy for c in opened.stand_in.contexts]
    assert found == [kinds.LAZY, kinds.EAGER, kinds.EAGER]
    assert len({id(context.config.cache) for context in opened.stand_in.contexts}) == 1
    opened.close()


def test_full_tensorrt_gets_no_runtime_configuration(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of TensorRT-RTX under the other name; full TensorRT has the same classes for all that is used here."""
    import tensorrt_rtx

    artifact = built_artifacts.get(SMALL)
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_rtx)
    opened = open_engine(artifact, monkeypatch, library="tensorrt")
    tokens, states = np.arange(8), opened.engine.allocate_states(1, 16)
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)):
        logits = opened.engine.step(step_inputs([tokens[start:stop]], [start]), states)
        assert relative_error(logits[0], artifact.made.logits(tokens[:stop])[-1]) < TOLERANCE
    assert all(context.config.cache is None for context in opened.stand_in.contexts)
    opened.close()


def test_a_failed_capture_only_costs_speed(built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    opened.memory.fail_capture = EngineError("ending a graph: the GPU reports no")
    tokens, states = np.arange(7), opened.engine.allocate_states(1, 16)
    with pytest.warns(RuntimeWarning, match="without a CUDA graph, which is slower: ending a graph"):
        for position in range(7):
            logits = opened.engine.step(step_inputs([tokens[position : position + 1]], [position]), states)
    assert relative_error(logits[0], artifact.made.logits(tokens)[-1]) < TOLERANCE
    assert not opened.memory.graphs
    opened.close()


def test_freed_memory_and_its_graphs_serve_the_next_states(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(9).integers(0, VOCAB, 7)
    for _ in range(3):
        states = opened.engine.allocate_states(1, 16)
        for position in range(7):
            logits = opened.engine.step(step_inputs([tokens[position : position + 1]], [position]), states)
        assert relative_error(logits[0], artifact.made.logits(tokens)[-1]) < TOLERANCE
        del states
        gc.collect()
    assert len(opened.memory.graphs) == 2 and len(opened.stand_in.contexts) == 3
    opened.close()


def test_two_sets_at_a_time_do_not_disturb_each_other(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    rng = np.random.default_rng(10)
    tokens = [rng.integers(0, VOCAB, 12) for _ in range(2)]
    sets = [opened.engine.allocate_states(1, 16) for _ in range(2)]
    for position in range(12):
        for which in (0, 1):
            step = step_inputs([tokens[which][position : position + 1]], [position])
            logits = opened.engine.step(step, sets[which])
            assert relative_error(logits[0], artifact.made.logits(tokens[which][: position + 1])[-1]) < TOLERANCE
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


def test_sequences_join_fork_and_come_back_from_the_host(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    rng = np.random.default_rng(11)
    tokens = [rng.integers(0, VOCAB, 24) for _ in range(3)]
    served = DenseAsPaged(opened.engine)
    served.allocate_pools(PoolSizes(4, 48, 4))
    served.zero_slots(range(4))
    first, second, copy, restored = (Row(place, place, []) for place in range(4))
    advance(served, [first, second], [tokens[0][:9], tokens[1][:4]])
    served.copy_blocks([1], [2])
    served.copy_slots([1], [2])
    copy.tokens += second.tokens
    for step in range(5):
        new = [tokens[0][9 + step : 10 + step], tokens[1][4 + step : 5 + step], tokens[2][step : step + 1]]
        logits = advance(served, [first, second, copy], new)
        for row, found in zip((first, second, copy), logits, strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    snapshot = served.swap_out([1], [1])
    for step in range(5, 12):
        if step == 8:
            served.swap_in(snapshot, [3], [3])
            restored.tokens += tokens[1][:9].tolist()
            advance(served, [restored], [tokens[1][9:12]])
        rows = [second, restored][: 1 + (step >= 8)]
        for row, found in zip(rows, advance(served, rows, [tokens[1][4 + step : 5 + step]] * len(rows)), strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    opened.close()


def test_rows_move_between_sets_without_the_host(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(12).integers(0, VOCAB, 9)
    served = DenseAsPaged(opened.engine)
    served.allocate_pools(PoolSizes(2, 48, 2))
    served.zero_slots(range(2))
    first, second = Row(0, 0, []), Row(1, 1, [])
    advance(served, [first], [tokens[:6]])
    monkeypatch.setattr(DeviceState, "read_row", None)
    monkeypatch.setattr(DeviceState, "write_row", None)
    # The second prompt runs in its own set next to a row that decodes, and more rows need a larger set.
    advance(served, [first, second], [tokens[6:7], tokens[:4]])
    for position in (7, 8):
        logits = advance(
            served, [first, second], [tokens[position : position + 1], tokens[position - 3 : position - 2]]
        )
        for row, found in zip((first, second), logits, strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    opened.close()


def advance(engine: DenseAsPaged, rows: list[Row], new: list[np.ndarray]) -> np.ndarray:
    """Feed ``new`` tokens of each row; logits after the last of them [rows, vocab]."""
    ids = [each.tolist() for each in new]
    logits = engine.step(packed_step(rows, ids, [{len(each) - 1} for each in ids], 48)).copy()
    for row, each in zip(rows, ids, strict=True):
        row.tokens += each
    return logits


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


def test_a_decode_step_is_closed_twice(built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_engine(built_artifacts.get(SMALL), monkeypatch)
    states = opened.engine.allocate_states(1, 8)
    for position in range(4):
        opened.engine.step(step_inputs([np.arange(1)], [position]), states)
    steps: list[DecodeStep] = list(opened.engine._decode_steps.values())
    opened.close()
    for step in steps:
        assert not step.is_replayed
        step.close()


@pytest.mark.parametrize("plan", [SMALL, PLANS["all_logits"]], ids=["base", "all_logits"])
def test_the_planned_memory_is_what_the_engine_takes(
    plan: Plan, built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(plan)
    opened, planned = open_engine(artifact, monkeypatch), dense_memory_plan(artifact.record)
    engine, memory = opened.engine, opened.memory

    def taken() -> int:
        return sum(allocation.nbytes for allocation in memory.live)

    own = planned.activations + 2 * (planned.inputs + planned.sampling) + planned.sampled
    row = engine.allocate_states(1, 16)
    before = taken()
    states = engine.allocate_states(3, 16)
    assert taken() - before == planned.rows
    del row
    most = engine.max_step_tokens
    engine.step(step_inputs([np.arange(most) % VOCAB] * 3, [0, 0, 0]), states)
    assert taken() == own + 2 * planned.logits + planned.row + planned.rows
    for _ in range(4):
        engine.step(step_inputs([np.array([1])] * 3, [0, 0, 0]), states)
    # Captured without sampling; of the others, one half lists likely tokens.
    assert 3 * len(memory.graphs) == planned.graphs and planned.contexts == planned.graphs + 1
    assert planned.fixed + planned.rows == sum(
        (
            artifact.record.nbytes,
            planned.activations,
            planned.inputs,
            planned.logits,
            planned.sampling,
            planned.rows,
        )
    )
    opened.close()


@pytest.mark.slow
def test_a_build_records_what_the_stand_ins_have(built_artifacts: BuiltArtifacts, tmp_path: Path) -> None:
    artifact = built_artifacts.get(SMALL)
    folder = shutil.copytree(artifact.folder, tmp_path / "artifact")
    options = network_options(artifact.config, plugins="off")
    built, made = build_engine(folder, options), artifact.record
    for name in ("bindings", "profiles", "max_batch_size", "max_seq_len", "model_sha256", "library_version"):
        assert getattr(built, name) == getattr(made, name), name
    assert built.scratch_bytes > 0
