"""What goes wrong around TensorRT: each is one EngineError that says what to do, and nothing is left behind."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt import TensorRTEngine
from hybridge.runtime.engines.tensorrt.dense_memory_plan import dense_memory_plan
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from hybridge.trt_plugins.plugins.errors import PluginErrors
from tests.runtime.onnxruntime.hand_made_plan import VOCAB
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.runtime.tensorrt.built import SMALL, BuiltArtifact, BuiltArtifacts, open_engine, stand_in_of
from tests.runtime.tensorrt.fake_memory import FakeAllocation, FakeMemory


@pytest.fixture
def artifact(built_artifacts: BuiltArtifacts) -> BuiltArtifact:
    return built_artifacts.get(SMALL)


def refused(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """The message of an engine that cannot be opened; nothing may be left behind."""
    memory = FakeMemory(options.pop("capacity", 1 << 40))
    built = options.pop("built", artifact.built)
    stand_in_of(artifact, memory, monkeypatch, **options)
    library = RuntimeLibrary("tensorrt_rtx", plugins=False)
    with pytest.raises(EngineError) as caught:
        TensorRTEngine(artifact.config, built, memory, library)
    memory.check_nothing_left()
    return str(caught.value)


def copied(built: BuiltEngine, folder: Path) -> BuiltEngine:
    """A copy of an engine's folder that a test may damage."""
    shutil.copytree(built.folder, folder)
    return replace(built, folder=folder)


def test_a_missing_or_cut_plan_is_found_by_its_size(
    artifact: BuiltArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = copied(artifact.built, tmp_path / "engine")
    content = built.plan.read_bytes()
    built.plan.write_bytes(content[:-5])
    message = refused(artifact, monkeypatch, built=built)
    assert f"expected an engine of {len(content)} bytes, found {len(content) - 5} bytes: run hybridge" in message
    built.plan.unlink()
    assert "found none: run hybridge build-engine" in refused(artifact, monkeypatch, built=built)


def test_a_damaged_plan_and_a_refused_one_have_different_errors(
    artifact: BuiltArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = copied(artifact.built, tmp_path / "engine")
    line = "Serialization assertion failed"
    assert f"{built.plan}: {line}: run hybridge" in refused(artifact, monkeypatch, built=built, refuse=line).replace(
        "tensorrt_rtx 1.7.1.116 cannot load ", ""
    )
    content = bytearray(built.plan.read_bytes())
    content[len(content) // 2] ^= 1
    built.plan.write_bytes(content)
    message = refused(artifact, monkeypatch, built=built, refuse=line)
    assert "the file is damaged, its bytes are not those that engine.json describes: run hybridge" in message


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("VERSION_MISMATCH", "version mismatch"),
        ("UNSUPPORTED_CC", "unsupported cc"),
        ("OLD_CUDA_DRIVER", "old cuda driver"),
    ],
)
def test_an_engine_that_tensorrt_calls_invalid(
    artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch, problem: str, words: str
) -> None:
    import tensorrt_rtx as trt

    bit = int(getattr(trt.EngineInvalidityDiagnostics, problem))
    assert f"on this machine: {words}" in refused(artifact, monkeypatch, invalid=bit)


def test_real_tensorrt_rtx_refuses_without_a_gpu(artifact: BuiltArtifact) -> None:
    library = RuntimeLibrary("tensorrt_rtx", plugins=False)
    with pytest.raises(EngineError, match=r"tensorrt_rtx .* cannot load .*model\.engine"):
        library.load(artifact.built.plan)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("past_key_0", {"shape": ["batch", 2, 96, 10]}, r"past_key_0: .*48, 10.*found .*96, 10.* not the engine"),
        ("conv_state_0", {"dtype": "float16"}, "conv_state_0: expected .*float32.*found .*float16"),
        ("logits", {"location": "HOST"}, "expected logits in device memory"),
        ("past_value_0", {"profiles": [[[1, 2, 48, 10]] * 3] * 2}, "past_value_0: expected the profiles"),
        ("present_key_0", {"engine_aliases": "past_value_0"}, "in the memory of past_key_0, found it in that of"),
        ("conv_state_0", {"mode": "output"}, "conv_state_0: expected .*input"),
    ],
)
def test_an_engine_that_differs_from_its_record(
    artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, Any], words: str
) -> None:
    assert re.search(words, refused(artifact, monkeypatch, changes={name: change}))


def test_too_little_memory_for_the_engine(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bytes for activations, found less" in refused(artifact, monkeypatch, capacity=10)
    planned = dense_memory_plan(artifact.record)
    tokens = planned.activations + 2 * planned.inputs
    assert "bytes for logits, found less" in refused(artifact, monkeypatch, capacity=tokens)


def test_too_little_memory_for_states_frees_cached_memory_first(
    artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(artifact, monkeypatch)
    states = opened.engine.allocate_states(1, 8)
    one_row = opened.memory.live[-1].nbytes
    for position in range(4):
        opened.engine.step(step_inputs([np.arange(1)], [position]), states)
    del states
    opened.memory.capacity = sum(allocation.nbytes for allocation in opened.memory.live) + one_row
    two = opened.engine.allocate_states(2, 8)
    assert all(graph.closed for graph in opened.memory.graphs) and len(opened.memory.graphs) == 2
    with pytest.raises(EngineError, match="for the states of 3 rows, found less"):
        opened.engine.allocate_states(3, 8)
    opened.engine.step(step_inputs([np.arange(3), np.arange(2)], [0, 0]), two)
    opened.close()


def test_a_failed_enqueue_reports_tensorrts_log_and_the_engine_continues(
    artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt_rtx as trt

    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(2).integers(0, VOCAB, 6)

    def fail(logger: Any) -> bool:
        logger.log(trt.ILogger.Severity.ERROR, "IExecutionContext::enqueueV3: Error Code 3: something")
        return False

    for count in (5, 1):
        states = opened.engine.allocate_states(1, 8)
        opened.stand_in.fail_enqueue = fail
        with pytest.raises(EngineError, match=r"tensorrt_rtx .* cannot run a step: IExecutionContext::enqueueV3"):
            opened.engine.step(step_inputs([tokens[:count]], [0]), states)
        opened.stand_in.fail_enqueue = None
        again = opened.engine.allocate_states(1, 8)
        logits = opened.engine.step(step_inputs([tokens[:count]], [0]), again)
        assert relative_error(logits[0], artifact.made.logits(tokens[:count])[-1]) < TOLERANCE
    opened.close()


def test_a_plugin_that_fails_is_named_with_its_layer(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_engine(artifact, monkeypatch)
    errors = PluginErrors()
    opened.engine._library._plugin_errors = errors
    states = opened.engine.allocate_states(1, 8)

    def fail(logger: Any) -> bool:
        errors.record(EngineError("plugin update_ssm_state of layer layers.3.ssm, enqueue: no kernel"))
        return False

    opened.stand_in.fail_enqueue = fail
    with pytest.raises(EngineError, match=r"^plugin update_ssm_state of layer layers\.3\.ssm, enqueue"):
        opened.engine.step(step_inputs([np.arange(3)], [0]), states)
    opened.close()


def test_a_refused_address_names_its_tensor(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime.tensorrt.stand_in import FakeContext

    opened = open_engine(artifact, monkeypatch)
    states = opened.engine.allocate_states(1, 8)
    monkeypatch.setattr(FakeContext, "set_tensor_address", lambda self, name, memory: name != "recurrent_state_0")
    with pytest.raises(EngineError, match="cannot bind recurrent_state_0: no reason given"):
        opened.engine.step(step_inputs([np.arange(3)], [0]), states)
    opened.close()


def test_a_missing_library_is_named() -> None:
    with pytest.raises(EngineError, match="the Python module tensorrt_of_tomorrow cannot be imported"):
        RuntimeLibrary("tensorrt_of_tomorrow", plugins=False)


def test_too_little_pinned_memory_for_the_logits_of_a_prompt_is_said_each_time(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They grow: what was allocated before the failure must not pass for all of it."""
    artifact, tokens = built_artifacts.get(replace(SMALL, all_logits=True)), np.arange(5)
    opened = open_engine(artifact, monkeypatch)
    states = opened.engine.allocate_states(1, 8)

    def refuse(nbytes: int, purpose: str) -> FakeAllocation:
        raise OutOfDeviceMemory(f"expected pinned memory for {purpose}, found less")

    with monkeypatch.context() as patch:
        patch.setattr(opened.memory, "allocate_pinned", refuse)
        for _ in range(2):
            with pytest.raises(EngineError, match="expected pinned memory for logits, found less"):
                opened.engine.step(step_inputs([tokens], [0]), states)
    logits = opened.engine.step(step_inputs([tokens], [0]), states)
    assert relative_error(logits[0], artifact.made.logits(tokens)) < TOLERANCE
    opened.close()


def test_an_engine_whose_gpu_has_failed_closes_cleanly(
    artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(artifact, monkeypatch)
    memory, sets = opened.memory, [opened.engine.allocate_states(rows, 8) for rows in (1, 2)]
    for position in range(3):
        for states in sets:
            rows = [np.arange(1)] * states.batch
            opened.engine.step(step_inputs(rows, [position] * states.batch), states)
    del sets[0], states
    assert len(memory.graphs) == 2

    memory.fail_wait = EngineError("waiting for the GPU: the GPU reports CUDA_ERROR_ILLEGAL_ADDRESS")
    opened.close()
