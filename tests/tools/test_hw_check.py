"""The hardware check on a machine without a GPU: ONNX Runtime instead of TensorRT, right and wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hw_check
import numpy as np
import pytest
from hardware import machine
from hardware.agreement import DECODE_STEPS, compare_engines

import hybridge
from hybridge.artifact.engine_record import PluginsRecord
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.dense import StateBuffer, StateSet, StepInputs
from tests.support.artifacts import ArtifactCache
from tests.support.export_cases import CASES

pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")

RECORD = SimpleNamespace(
    library="tensorrt_rtx",
    library_version="1.7",
    compute_capabilities=["8.9"],
    nbytes=6,
    build_seconds=1.0,
    layers={"PLUGIN_V3": 2},
    bindings=[],
    plugins=PluginsRecord("trt_edgellm", "1", {"causal_conv1d": 1, "update_ssm_state": 1}, True, ""),
)


class WrongStates(StateSet):
    """States of which one reads a little too much."""

    def __init__(self, real: StateSet, name: str, factor: float) -> None:
        self.real, self.batch = real, real.batch
        self._name, self._factor = name, factor

    @property
    def buffers(self) -> Mapping[str, StateBuffer]:
        wrong = self.real.buffers[self._name]

        def read_row(row: int, length: int | None = None) -> np.ndarray:
            return wrong.read_row(row, length) * self._factor

        double: Any = SimpleNamespace(spec=wrong.spec, shape=wrong.shape, read_row=read_row)
        return {**self.real.buffers, self._name: double}

    @property
    def max_seq(self) -> int:
        return self.real.max_seq

    def reserve(self, max_seq: int) -> None:
        self.real.reserve(max_seq)


class WrongEngine:
    """An engine whose state ``name`` is off by ``factor`` when it is read."""

    def __init__(self, real: DenseEngine, name: str, factor: float) -> None:
        self.real, self._wrong = real, (name, factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def allocate_states(self, batch: int, max_seq: int) -> StateSet:
        return WrongStates(self.real.allocate_states(batch, max_seq), *self._wrong)

    def step(self, inputs: StepInputs, states: WrongStates) -> np.ndarray:
        return self.real.step(inputs, states.real)


@pytest.fixture(scope="module")
def artifact(artifacts: ArtifactCache) -> Path:
    return CASES["bamba fp32"].get(artifacts).folder


@pytest.fixture
def engines(artifact: Path) -> Any:
    both = create_dense_engine(artifact), create_dense_engine(artifact)
    yield both
    for engine in both:
        engine.close()


def test_equal_engines_agree(engines: tuple[DenseEngine, DenseEngine]) -> None:
    comparisons = compare_engines(*engines)
    assert all(comparison.passed and comparison.error == 0.0 for comparison in comparisons)
    steps = [comparison.step for comparison in comparisons if comparison.what == "logits"]
    assert steps == ["prompt", "chunk", *(f"decode {index}" for index in range(DECODE_STEPS))]
    states = {comparison.what for comparison in comparisons} - {"logits"}
    assert states == {"past_key_0", "past_value_0", "conv_state_0", "recurrent_state_0"}


@pytest.mark.parametrize("name", ["past_key_0", "recurrent_state_0"])
@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_wrong_state_is_found(engines: tuple[DenseEngine, DenseEngine], name: str, factor: float) -> None:
    found: Any = WrongEngine(engines[0], name, factor)
    wrong = [comparison for comparison in compare_engines(found, engines[1]) if not comparison.passed]
    assert [(comparison.step, comparison.what) for comparison in wrong] == [
        (step, name) for step in ("prompt", "chunk", "decode")
    ]
    assert all((comparison.error is None) == (factor != factor) for comparison in wrong)


class Hybridge:
    """The public functions, with ONNX Runtime for every engine and no TensorRT."""

    def __init__(self) -> None:
        self.built: list[dict[str, Any]] = []

    def build_engine(self, artifact: Path, **options: Any) -> Any:
        self.built.append(options)
        return RECORD

    def LLM(self, artifact: Path, engine: str) -> Any:
        llm = SimpleNamespace(generate=lambda prompt, max_new_tokens: SimpleNamespace(text=f"{engine} text"))
        return contextlib.nullcontext(llm)


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> Hybridge:
    public = Hybridge()
    monkeypatch.setattr(hw_check, "hybridge", public)
    monkeypatch.setattr(hw_check, "create_dense_engine", lambda artifact, name: create_dense_engine(artifact))
    monkeypatch.setattr(hw_check, "machine_document", lambda: {"gpu": {"name": "a GPU"}})
    monkeypatch.setattr(hw_check, "BENCHMARK_TOKENS", 3)
    monkeypatch.setattr(hw_check, "REPETITIONS", 1)
    return public


def checked(artifact: Path, report: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    code = hw_check.main([str(artifact), "--report", str(report), *arguments])
    return code, json.loads(report.read_text(encoding="utf-8"))


def test_a_good_machine_passes(artifact: Path, doubles: Hybridge, tmp_path: Path) -> None:
    code, report = checked(artifact, tmp_path / "report.json", "--max-batch", "2")
    assert (code, report["passed"]) == (0, True)
    steps = [(step["step"], step.get("engine")) for step in report["steps"]]
    kinds = ("build", "verify", "generate", "benchmark")
    assert steps == [("gpu", None), *((kind, engine) for engine in hw_check.ENGINES for kind in kinds)]
    assert [options["plugins"] for options in doubles.built] == ["on", "on", "on", "off"]
    assert [options.get("plugin_states") for options in doubles.built] == ["aliased", "separate", "aliased", None]
    assert [options.get("plugin_mixers") for options in doubles.built] == [None, None, "separate", None]
    assert all(options["overwrite"] and options["max_batch_size"] == 2 for options in doubles.built)
    build, verify, generate, benchmark = report["steps"][1:5]
    assert build["plugins"]["ops"] == {"causal_conv1d": 1, "update_ssm_state": 1}
    assert len(verify["comparisons"]) == 2 + DECODE_STEPS + 3 * 4
    assert generate["texts"] == {"tensorrt": "tensorrt text", "onnxruntime": "onnxruntime text"}
    assert set(benchmark["benchmarks"]) == {"tensorrt", "onnxruntime"}


def test_a_wrong_engine_fails(
    artifact: Path, doubles: Hybridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def created(folder: Path, name: str) -> Any:
        engine = create_dense_engine(folder)
        return WrongEngine(engine, "conv_state_0", 1.1) if name == "tensorrt" else engine

    monkeypatch.setattr(hw_check, "create_dense_engine", created)
    monkeypatch.setattr(hw_check, "run_benchmark", lambda *args, **options: SimpleNamespace(to_json=dict))
    code, report = checked(artifact, tmp_path / "report.json", "--engine", "plugins")
    assert (code, report["passed"]) == (1, False)
    status = {step["step"]: step["status"] for step in report["steps"]}
    expected = {"gpu": "passed", "build": "passed", "verify": "failed", "generate": "passed", "benchmark": "passed"}
    assert status == expected
    assert "expected conv_state_0 of the step 'prompt' within 0.001 of onnxruntime" in report["steps"][2]["error"]


def test_a_failed_build_is_recorded(
    artifact: Path, doubles: Hybridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path, plugins: str, **options: Any) -> Any:
        if plugins == "on":
            raise EngineError("plugin x of layer y")
        raise RuntimeError("a crash")

    monkeypatch.setattr(doubles, "build_engine", build)
    code, report = checked(artifact, tmp_path / "report.json")
    assert code == 1
    assert [(step["step"], step["status"]) for step in report["steps"][1:]] == [("build", "failed")] * len(
        hw_check.ENGINES
    )
    assert report["steps"][1]["error"] == "plugin x of layer y"
    assert report["steps"][-1]["error"] == "RuntimeError: a crash" and "traceback" in report["steps"][-1]


def test_nothing_runs_without_a_gpu(
    artifact: Path, doubles: Hybridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hw_check, "machine_document", lambda: {"gpu": None})
    code, report = checked(artifact, tmp_path / "report.json")
    assert code == 1 and not doubles.built
    assert "found none: run this on the device" in report["steps"][0]["error"]
    assert {step["status"] for step in report["steps"][1:]} == {"skipped"}


def test_the_shipped_checkpoint_is_exported_where_none_is_given(
    doubles: Hybridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = []

    def export(checkpoint: Path, out: Path) -> Any:
        exported.append(checkpoint)
        raise hybridge.HybridgeError("no torch")

    monkeypatch.setattr(doubles, "export", export, raising=False)
    report = tmp_path / "report.json"
    assert hw_check.main(["--report", str(report)]) == 1
    steps = json.loads(report.read_text(encoding="utf-8"))["steps"]
    assert [step["status"] for step in steps] == ["passed", "failed", *["skipped"] * len(hw_check.ENGINES)]
    assert (exported[0] / "config.json").is_file()


def test_the_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "local_capability", lambda: None)
    document = machine.machine_document()
    assert document["gpu"] is None and document["python"] and "numpy" in document["versions"]
    json.dumps(document)
