"""The record of an engine: the memory that it plans is what the engine takes, and a build writes the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridge.runtime.engines.tensorrt.dense_memory_plan import dense_memory_plan
from hybridge.runtime.engines.tensorrt_network.parsed import network_options
from hybridge.trt_plugins.build.builder import build_engine
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import step_inputs
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts, open_engine


@pytest.mark.parametrize("plan", [SMALL, replace(SMALL, all_logits=True)], ids=["base", "all_logits"])
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
