"""From an artifact's folder to an engine, through the factory, on a machine that reports a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.benchmark import run_benchmark
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.tensorrt import TensorRTEngine, opened_device
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.trt_plugins.build.target import Machine
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.runtime.tensorrt.built import PRESET, SMALL, BuiltArtifact, BuiltArtifacts, stand_in_of
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.stand_in import CAPABILITY


@pytest.fixture
def artifact(built_artifacts: BuiltArtifacts) -> BuiltArtifact:
    return built_artifacts.get(SMALL)


@pytest.fixture
def memory(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    """The device of the machine, on which TensorRT-RTX runs."""
    memory = FakeMemory()
    stand_in_of(artifact, memory, monkeypatch)
    monkeypatch.setattr(opened_device, "CudaMemory", lambda: memory)
    selection = "hybridge.runtime.engines.tensorrt.selection"
    monkeypatch.setattr(f"{selection}.this_machine", lambda: Machine(("tensorrt_rtx",), CAPABILITY))
    monkeypatch.setattr(f"{selection}.cuda_core", lambda: None)
    return memory


@pytest.mark.parametrize(
    ("name", "folder"), [("auto", None), ("tensorrt", None), ("tensorrt", PRESET), ("auto", PRESET)]
)
def test_the_engine_that_fits_is_opened(
    artifact: BuiltArtifact, memory: FakeMemory, name: str, folder: str | None
) -> None:
    opened = create_dense_engine(artifact.folder, name, EngineOptions(engine_folder=folder))
    assert isinstance(opened, TensorRTEngine) and opened.name == "tensorrt" and opened.notes == ()
    assert opened.built.folder.name == PRESET and opened.state_specs == artifact.config.bindings.states
    tokens = np.arange(5)
    logits = opened.step(step_inputs([tokens], [0]), opened.allocate_states(1, 8))
    assert relative_error(logits[0], artifact.made.logits(tokens)[-1]) < TOLERANCE
    opened.close()
    memory.check_nothing_left()


def test_llm_and_bench_take_an_engine_of_tensorrt(artifact: BuiltArtifact, memory: FakeMemory) -> None:
    prompts, new = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]], 6

    def expected(prompt: list[int]) -> tuple[int, ...]:
        tokens = list(prompt)
        for _ in range(new):
            tokens.append(int(artifact.made.logits(np.array(tokens))[-1].argmax()))
        return tuple(tokens[len(prompt) :])

    with LLM(artifact.folder, "tensorrt") as llm:
        found = llm.generate([*prompts, prompts[0]], SamplingParams(ignore_eos=True), new)
        assert [answer.token_ids for answer in found] == [expected(prompt) for prompt in [*prompts, prompts[0]]]
        # The next turn of a chat continues from the first one's states.
        turn = [*prompts[2], *expected(prompts[2]), 11]
        answer = llm.generate(turn, SamplingParams(ignore_eos=True), new)
        assert answer.token_ids == expected(turn) and answer.cached_tokens
        report = run_benchmark(llm.engine, (4,), (2,), repetitions=1, warmup=0)
        assert report.engine == "tensorrt" and report.decode[0].time_per_token.count == 2
    memory.check_nothing_left()


def test_a_library_that_cannot_start_leaves_nothing(
    artifact: BuiltArtifact, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt_rtx

    def fail(logger: object) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(tensorrt_rtx, "Runtime", fail)
    with pytest.raises(EngineError, match=r"tensorrt_rtx .* cannot start: no driver"):
        create_dense_engine(artifact.folder, "tensorrt")
    memory.check_nothing_left()
