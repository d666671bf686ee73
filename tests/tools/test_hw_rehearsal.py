"""Every step of the hardware check, over engines whose contexts compute the network that TensorRT's parser makes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastjsonschema
import hw_check
import numpy as np
import pytest
from hardware import agreement, drift, serving, speed, steps
from hardware.forms import EXPORTS, FORMS, MTP, Form
from hardware.report import SCHEMA
from hardware.steps import STEPS, run_steps
from hardware.subject import Subject

from hybridge.artifact.dtypes import DType
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")

from tests.runtime.tensorrt import paged_double
from tests.runtime.tensorrt.paged_double import ParsedEngine, use_double

# Sizes that the plugins' kernels have.
SIZES = {"hybrid_override_pattern": "M*", "mamba_head_dim": 16, "ssm_state_size": 24, "head_dim": 64}


def run_here(subject: Subject, names: Sequence[str], deadline: float) -> Iterator[Mapping[str, Any]]:
    """The steps in this process, where the doubles are."""
    return run_steps(subject, names, lambda name: None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests and tokens."""
    for module, name, value in (
        (serving, "REQUESTS", 5),
        (serving, "NEW_TOKENS", 5),
        (drift, "TOKENS", 24),
        (agreement, "DECODE_STEPS", 3),
        (speed, "PROMPTS", (20, 40)),
        (speed, "NEW_TOKENS", 3),
        (speed, "REPETITIONS", {"tensorrt": 2, "onnxruntime": 1}),
    ):
        monkeypatch.setattr(module, name, value)


@dataclass
class Rehearsal:
    """Runs the check of one form of an artifact with a double of its engine in TensorRT's place."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def run(self, form: Form, artifact: Path, *arguments: str) -> dict[str, Any]:
        """The report."""
        files, out = self.folder / "engine", self.folder / "artifacts" / form.artifact
        files.mkdir()
        out.parent.mkdir()
        out.symlink_to(artifact)
        parsed = ParsedEngine(artifact, files, **form.options)
        use_double(parsed, self.monkeypatch)
        self.monkeypatch.setattr(steps.hybridge, "build_engine", lambda folder, **options: parsed.record)
        self.monkeypatch.setattr(hw_check, "machine_document", lambda: MACHINE)
        report = self.folder / "report.json"
        hw_check.main([str(out.parent), "--form", form.name, "--report", str(report), *arguments], run_here)
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found


MACHINE = {
    "system": "Linux",
    "processor": "aarch64",
    "python": "3.12",
    "versions": {"numpy": "2"},
    "libraries": ["tensorrt_rtx"],
    "gpu": {"capability": "8.9", "name": "a <GPU>"},
    "memory": {},
    "board": {},
}


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Rehearsal:
    return Rehearsal(tmp_path, monkeypatch)


def check_all_passed(report: Mapping[str, Any], form: str) -> None:
    problems = {step["step"]: step.get("error") for step in report["steps"] if step["status"] != "passed"}
    assert report["passed"] and problems == {}
    assert [step["step"] for step in report["steps"] if step.get("form") == form] == list(STEPS)
    check_schema(report)


def check_schema(report: Mapping[str, Any]) -> None:
    fastjsonschema.validate(json.loads(SCHEMA.read_text(encoding="utf-8")), report)


def exported(artifacts: ArtifactCache, name: str, **others: Any) -> Path:
    """A tiny artifact with the options of ``name``, and ``others``."""
    options = {**EXPORTS[name], **others}
    stored = DType(options.pop("dtype"))
    pattern = "*" if name == MTP else None
    return artifacts.get("nemotron_h", stored.value, SIZES, mtp_pattern=pattern, dtype=stored, **options).folder


@pytest.mark.slow
def test_a_paged_engine_passes(rehearse: Rehearsal, artifacts: ArtifactCache) -> None:
    form = FORMS["paged-bfloat16"]
    report = rehearse.run(form, exported(artifacts, form.artifact))
    check_all_passed(report, form.name)
    _, _, build, verify, serve, graphs, drift_step, measured = report["steps"]
    assert build["planned_memory"]["graphs"] and serve["equal"] + serve["ties"] == 5
    states = {"kv_pool_0", "conv_state_0", "recurrent_state_0"}
    assert {comparison["what"] for comparison in verify["comparisons"]} == {"logits", *states}
    assert graphs["same_bits"] and set(graphs["errors"]) == {"logits", *states} == {"logits", *drift_step["states"]}
    assert list(drift_step["errors"]) == ["1", "2", "6", "12", "18", "24"]
    assert {*measured["tensorrt"]["decode"]} == {"b1", "b3"} and {*measured["onnxruntime"]["prefill"]} == {
        "pp20",
        "pp40",
    }
    page = (rehearse.folder / "report.html").read_text(encoding="utf-8")
    assert "a &lt;GPU&gt;" in page and page.count("<svg") == 5 and "http" not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FORMS if name != "paged-bfloat16"])
def test_every_form_passes(name: str, rehearse: Rehearsal, artifacts: ArtifactCache) -> None:
    form = FORMS[name]
    report = rehearse.run(form, exported(artifacts, form.artifact))
    check_all_passed(report, name)
    assert report["steps"][4]["draft_tokens"] == form.drafts


@pytest.mark.slow
def test_the_full_number_of_requests_and_tokens(
    tmp_path: Path, artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "NEW_TOKENS", 3)
    form = FORMS["paged-bfloat16"]
    report = Rehearsal(tmp_path, monkeypatch).run(form, exported(artifacts, form.artifact, max_seq_len=2048))
    check_all_passed(report, form.name)
    assert report["steps"][4]["requests"] == 64 and report["steps"][6]["tokens"] == 2000


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("verify", "expected logits of the step 'prompt' within 0.05 of onnxruntime"),
        ("serve", "expected the tokens of each request alone, found others in"),
        ("graphs", "expected logits of captured steps within"),
        ("drift", "expected logits after 1 tokens within 0.05"),
    ],
)
def test_a_wrong_engine_fails_and_the_check_goes_on(
    step: str, fault: str, rehearse: Rehearsal, artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that depend on the number of earlier steps."""
    form, run = FORMS["paged-bfloat16"], Rehearsal.run
    wrong = itertools.count(1)
    compute = paged_double.network_compute

    def faulty(network: Any) -> Any:
        right = compute(network)

        def computed(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            found = right(values)
            noise = np.random.default_rng(next(wrong)).standard_normal(found["logits"].shape)
            return {**found, "logits": found["logits"] + noise.astype(np.float32)}

        return computed

    monkeypatch.setattr(paged_double, "network_compute", faulty)
    report = run(rehearse, form, exported(artifacts, form.artifact), "--step", step)
    found = [(record["step"], record["status"]) for record in report["steps"][2:]]
    assert found == [("build", "passed"), (step, "failed")] and not report["passed"]
    assert fault in report["steps"][-1]["error"]
    check_schema(report)
