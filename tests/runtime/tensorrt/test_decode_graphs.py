"""Decode steps: run directly, captured, then replayed."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from tests.runtime.onnxruntime.hand_made_plan import VOCAB
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts, open_engine


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
    opened = open_engine(built_artifacts.get(replace(SMALL, layers="a")), monkeypatch)
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
