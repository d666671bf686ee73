"""The hardware check around its steps: what is run, what a failure or a crash leaves, reports and their comparison."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hw_check
import hw_compare
import numpy as np
import pytest
from hardware import artifacts, machine, power, process, steps
from hardware.agreement import relative_error
from hardware.charts import bars, lines
from hardware.forms import FORMS
from hardware.head_checkpoint import write_with_head
from hardware.power import PowerMeter
from hardware.process import run_isolated
from hardware.serving import outcome
from hardware.steps import STEPS
from hardware.subject import Subject

from hybridge.artifact.errors import EngineError, ExportError
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.runtime.generation import Generation, Timings
from hybridge.runtime.sampling import TokenLogprobs

FORM = FORMS["paged-plugins"]
GPU = {"capability": "8.7", "name": "Orin"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of artifacts that only this test's double of the runner looks into."""
    found = {"dense": tmp_path / "dense", "paged": tmp_path / "paged"}
    monkeypatch.setattr(hw_check, "find_artifacts", lambda folder: found)
    monkeypatch.setattr(hw_check, "artifact_document", lambda folder: {"folder": str(folder)})
    monkeypatch.setattr(hw_check, "machine_document", lambda: {"gpu": GPU})
    return tmp_path


def checked(folder: Path, runner: hw_check.Runner, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    code = hw_check.main([str(folder), "--report", str(folder / "report.json"), *arguments], runner)
    return code, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def all_pass(subject: Subject, names: Sequence[str], deadline: float) -> Iterator[Mapping[str, Any]]:
    yield from ({"step": name, "status": "passed", "seconds": 0.0} for name in names if name != "speed")


def test_every_form_that_has_its_artifact_is_run(folder: Path) -> None:
    code, report = checked(folder, all_pass)
    assert (code, report["passed"]) == (0, True)
    run = {step["form"] for step in report["steps"] if step["step"] == "verify"}
    assert run == {name for name, form in FORMS.items() if form.artifact in ("dense", "paged")}
    left = {step["form"]: step["reason"] for step in report["steps"] if step["status"] == "unsupported"}
    assert left["paged-int4"] == "expected the artifact 'int4' for it, found dense, paged"
    assert set(left) | run == set(FORMS)


def test_a_failure_ends_nothing_else(folder: Path) -> None:
    def runner(subject: Subject, names: Sequence[str], deadline: float) -> Iterator[Mapping[str, Any]]:
        assert 0 < deadline - time.monotonic() <= 90
        yield from ({"step": n, "status": "failed", "seconds": 1.0, "error": "no <kernel>"} for n in names)

    arguments = ["--form", "dense-native", "--form", "paged-native", "--step", "serve", "--minutes", "1.5"]
    code, report = checked(folder, runner, *arguments)
    assert (code, report["passed"]) == (1, False)
    found = [(step.get("form"), step["step"]) for step in report["steps"][2:]]
    assert found == [(form, step) for form in ("dense-native", "paged-native") for step in ("build", "serve")]
    assert "no &lt;kernel&gt;" in (folder / "report.html").read_text(encoding="utf-8")


def test_nothing_runs_without_a_gpu_or_an_artifact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path) -> Any:
        raise ExportError("no torch")

    monkeypatch.setattr(hw_check, "find_artifacts", missing)
    code, report = checked(folder, all_pass)
    assert code == 1 and [step.get("error") for step in report["steps"]] == [None, "no torch"]
    monkeypatch.setattr(hw_check, "machine_document", lambda: {"gpu": None})
    code, report = checked(folder, all_pass)
    assert code == 1 and "found none: run this on the device" in report["steps"][0]["error"]


def test_artifacts_are_found_by_name_or_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, Any]] = []
    monkeypatch.setattr(artifacts.hybridge, "export", lambda _, out, **options: written.append((out.name, options)))
    assert hw_check.main(["--export-only", str(tmp_path)]) == 0
    assert [name for name, _ in written] == ["dense", "paged", "bfloat16", "int4", "fp8-kv", "mtp"]
    assert all(options["weights"] == "copy" and options["max_batch_size"] == 8 for _, options in written)
    assert (artifacts.CHECKPOINT / "config.json").is_file()
    assert hw_check.main([str(tmp_path / "nothing"), "--report", str(tmp_path / "report.json")]) == 1


def test_the_demo_checkpoint_gets_a_head(tmp_path: Path) -> None:
    write_with_head(artifacts.CHECKPOINT, tmp_path / "checkpoint")
    plan = plan_export(tmp_path / "checkpoint", ExportOptions(layout="paged"))
    assert plan.mtp is not None and plan.mtp.decoder.layer_types == ("attention",)
    assert plan_export(artifacts.CHECKPOINT, ExportOptions(layout="paged")).mtp is None


# In the child, before its own program: every step calls ``step_of`` with its name.
REPLACED_STEPS = """
import os, time
import hardware.steps as steps
def step_of(name):
    {body}
steps.STEPS = {{name: (lambda subject, name=name: step_of(name)) for name in steps.STEPS}}
"""


def in_child(monkeypatch: pytest.MonkeyPatch, body: str, deadline: float) -> list[dict[str, Any]]:
    """The records of all steps, each of which runs ``body``."""
    monkeypatch.setattr(process, "_COMMAND", REPLACED_STEPS.format(body=body) + process._COMMAND)
    return list(run_isolated(Subject(Path("out"), FORM), list(STEPS), deadline))


def test_a_crash_fails_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "os.write(2, b'native words'); os.kill(os.getpid(), 11) if name == 'serve' else None; return {'found': name}"
    records = in_child(monkeypatch, body, time.monotonic() + 600)
    assert [record["step"] for record in records] == list(STEPS)
    assert {record["step"] for record in records if record["status"] == "passed"} == set(STEPS) - {"serve"}
    assert records[2]["error"].startswith("the process died (signal SIGSEGV): native words")


@pytest.mark.slow
def test_a_process_that_dies_between_steps_fails_none(monkeypatch: pytest.MonkeyPatch) -> None:
    die = """
original = steps.run_steps
def run_steps(*arguments):
    for record in original(*arguments):
        yield record
        if record["step"] == "serve":
            os.kill(os.getpid(), 11)
steps.run_steps = run_steps
"""
    monkeypatch.setattr(process, "_COMMAND", die + process._COMMAND)
    records = in_child(monkeypatch, "return {}", time.monotonic() + 600)
    assert [(record["step"], record["status"]) for record in records] == [(name, "passed") for name in STEPS]


def test_a_hang_ends_with_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up once the second step has begun to hang."""
    hangs = tmp_path / "hangs"

    def timer(seconds: float, end: Callable[[], None]) -> threading.Thread:
        def wait() -> None:
            while not hangs.exists():
                time.sleep(0.01)
            end()

        thread = threading.Thread(target=wait, daemon=True)
        thread.cancel = lambda: None  # type: ignore[attr-defined]
        return thread

    monkeypatch.setattr(process, "threading", SimpleNamespace(Timer=timer))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: 9.0 * hangs.exists()))
    body = f"(open({str(hangs)!r}, 'w'), time.sleep(600)) if name == 'verify' else None; return {{}}"
    records = in_child(monkeypatch, body, deadline=9.0)
    assert [record["status"] for record in records] == ["passed", "failed", *["skipped"] * 4]
    assert records[1]["error"] == "expected the step to end in time, it did not"


def test_steps_record_what_they_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(subject: Subject) -> Any:
        raise EngineError("plugin x of layer y")

    def crash(subject: Subject) -> Any:
        raise ZeroDivisionError("a crash")

    monkeypatch.setattr(steps, "STEPS", {"build": build, "speed": crash})
    subject = Subject(Path("out"), FORM)
    (record,) = steps.run_steps(subject, ["build", "speed"], lambda name: None)
    assert (record["status"], record["error"]) == ("failed", "plugin x of layer y")
    record = steps.run_step(subject, "speed")
    assert record["error"] == "ZeroDivisionError: a crash" and "traceback" in record


def generation(tokens: Sequence[int], second: tuple[int, float]) -> Generation:
    """Tokens of probability 1/2, beside each of which ``second`` is listed."""
    listed = tuple(TokenLogprobs(token, -0.7, ((token, -0.7), second)) for token in tokens)
    return Generation("", tuple(tokens), (), "length", None, listed, 0, Timings(0, 0, len(tokens)))


@pytest.mark.parametrize(
    ("tokens", "expected"), [([1, 2, 3], "equal"), ([1, 5, 6], "tie"), ([1, 6, 3], "different"), ([1], "different")]
)
def test_only_ties_may_change_tokens(tokens: list[int], expected: str) -> None:
    other = generation([1, 2, 3], (5, -0.71))
    assert outcome(generation(tokens, (0, 0.0)), other, 0.02) == expected
    assert outcome(generation(tokens, (0, 0.0)), other, 0.001) in ("equal", "different")


def test_a_value_that_is_not_finite_has_no_error() -> None:
    assert relative_error(np.array([1.0, np.nan]), np.ones(2)) is None
    assert relative_error(np.array([1.1, 1.0]), np.ones(2)) == pytest.approx(0.1 / np.sqrt(2))


@pytest.mark.parametrize(
    ("tool", "line", "rails"),
    [
        (
            "tegrastats",
            "RAM 2/7620MB VDD_IN 4000mW/3900mW VDD_CPU_GPU_CV 600mW/500mW",
            {"VDD_IN": 4, "VDD_CPU_GPU_CV": 0.6},
        ),
        ("nvidia-smi", "71.50 W", {"gpu": 71.5}),
    ],
)
def test_power(tool: str, line: str, rails: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / tool).write_text(f"#!/bin/sh\necho '{line}'\necho '{line}'\nexec sleep 60\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(power.shutil, "which", lambda name: str(tmp_path / name) if name == tool else None)
    with PowerMeter() as meter:
        while (document := meter.document()) is None or document["samples"] < 2:
            time.sleep(0.01)
    assert document["tool"] == tool
    assert document["rails"] == {
        name: pytest.approx({"mean_w": watts, "peak_w": watts}) for name, watts in rails.items()
    }
    monkeypatch.setattr(power.shutil, "which", lambda name: None)
    with PowerMeter() as meter:
        pass
    assert meter.document() is None


def test_charts_show_every_value() -> None:
    chart = bars("speed <b>", [("one", {"a": 10.0, "b": 5.0}), ("two", {"a": 2.5})])
    assert chart.count("<rect") == 3 + 2 and "speed &lt;b&gt;" in chart
    assert 'width="560.0"' in chart and 'width="280.0"' in chart and 'width="140.0"' in chart
    curve = lines("errors", {"one": {1: 1e-3, 1000: 1e-2}, "none": {}}, limit=5e-2)
    assert curve.count("<polyline") == 1 and 'points="60.0,' in curve and "stroke-dasharray" in curve
    assert bars("none", [("one", {})]) == "" == lines("none", {"one": {5: 0.0}})


def report(status: str = "passed", speed: float = 100.0) -> dict[str, Any]:
    side = {
        "prefill": {},
        "decode": {"b1": {"tokens_per_second": speed, "power": None}},
        "memory": {"peak_host_bytes": 4},
    }
    step = {"form": "dense-native", "step": "speed", "status": status, "tensorrt": side, "onnxruntime": side}
    common = {"hw_check": 2, "hybridge": "1", "created": "now", "machine": {"gpu": GPU}}
    return {**common, "steps": [step, {"step": "gpu", "status": "passed"}]}


def test_reports_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a": report(), "b": report(speed=150.0), "c": report("failed")}
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    (tmp_path / "other").write_text("[1]")

    def compared(one: str, two: str) -> tuple[int, str]:
        code = hw_compare.main([str(tmp_path / one), str(tmp_path / two)])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, said = compared("a", "b")
    assert code == 0 and said.count("1.500") == 2 and "tensorrt b1, tok/s" in said
    code, said = compared("a", "c")
    assert code == 1 and "passed before, now failed" in said
    for wrong in ("other", "absent"):
        code, said = compared("a", wrong)
        assert code == 2 and said.startswith("error: ")


def test_the_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "local_capability", lambda: None)
    document = machine.machine_document()
    assert document["gpu"] is None and document["python"] and "numpy" in document["versions"]
    assert document["memory"]["total_mib"] > document["memory"]["available_mib"] > 0
    json.dumps(document)
