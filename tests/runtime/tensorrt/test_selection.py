"""Which engine is taken, and the error when none fits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.engine_record import EngineRecord, PluginsRecord, ProfileRecord, write_engine_record
from hybridge.artifact.errors import ArtifactError, EngineError
from hybridge.runtime.engines.tensorrt.selection import find_engine
from hybridge.trt_plugins.build.target import Machine

trt = pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

AMPERE = Machine(("tensorrt_rtx",), "8.6")
MODEL = b"not read here"


def record(**changes: object) -> EngineRecord:
    """A record of an engine that fits AMPERE."""
    base = EngineRecord(
        engine="model.engine",
        nbytes=3,
        sha256="0",
        library="tensorrt_rtx",
        library_version=trt.__version__,
        preset="rtx-ampere",
        compute_capabilities=["8.6"],
        plugins=PluginsRecord("trt_edgellm", "1", {}, False, "--plugins off"),
        max_batch_size=1,
        max_seq_len=8,
        profiles=[ProfileRecord("prefill", {}), ProfileRecord("decode", {})],
        bindings=[],
        layers={},
        model_sha256=hashlib.sha256(MODEL).hexdigest(),
        build_seconds=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def artifact_with(folder: Path, **engines: EngineRecord) -> Path:
    """An artifact folder with engines by name; each is older than the one after it."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(MODEL)
    for age, (name, engine) in enumerate(engines.items()):
        (folder / "engines" / name).mkdir(parents=True)
        path = folder / "engines" / name / "engine.json"
        write_engine_record(path, engine)
        os.utime(path, (1000 + age, 1000 + age))
    return folder


def problem(folder: Path, machine: Machine = AMPERE, requested: str | Path | None = None) -> str:
    """Why no engine is found."""
    with pytest.raises(EngineError) as caught:
        find_engine(folder, requested, machine)
    return str(caught.value)


def test_the_latest_engine_that_fits_is_taken(tmp_path: Path) -> None:
    other = record(compute_capabilities=["8.9"])
    portable = record(compute_capabilities=["8.0", "8.6"])
    folder = artifact_with(tmp_path / "out", old=record(), generic=portable, newest=other)
    found = find_engine(folder, None, AMPERE)
    assert found.folder.name == "generic" and found.plan == folder / "engines" / "generic" / "model.engine"
    assert found.build_again == f"run hybridge build-engine {folder} --target rtx-ampere --overwrite"


def test_an_engine_may_be_named_or_lie_elsewhere(tmp_path: Path) -> None:
    folder = artifact_with(tmp_path / "out", old=record(), new=record(max_batch_size=2))
    elsewhere = artifact_with(tmp_path / "copy", mine=record(max_batch_size=3)) / "engines" / "mine"
    assert find_engine(folder, "old", AMPERE).record.max_batch_size == 1
    assert find_engine(folder, elsewhere, AMPERE).record.max_batch_size == 3
    for machine in (AMPERE, Machine(("tensorrt_rtx",), None)):
        message = problem(folder, machine, requested="absent")
        assert "one of engines (new, old), found 'absent': name one of these, or run hybridge build-engine" in message


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    folder = artifact_with(tmp_path / "out", old=record())
    expected = "the tensorrt engine needs an NVIDIA GPU and its driver, found none: use `engine='onnxruntime'`"
    assert problem(folder, Machine(("tensorrt_rtx",), None)) == expected


def test_an_artifact_without_engines(tmp_path: Path) -> None:
    folder = artifact_with(tmp_path / "out")
    command = f"run hybridge build-engine {folder} --target rtx-ampere"
    assert (
        problem(folder) == f"{folder}: expected an engine for this GPU (compute capability 8.6), found none: {command}"
    )
    assert problem(folder, replace(AMPERE, capability="9.0")).endswith("--compute-capability 9.0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capabilities": ["8.9", "12.0"]}, "mine (built for compute capability 8.9, 12.0, not 8.6)"),
        ({"library": "tensorrt"}, "mine (built by tensorrt, which is not installed)"),
        ({"library_version": "1.2.3"}, f"built by tensorrt_rtx 1.2.3, installed is {trt.__version__}"),
        ({"model_sha256": "0"}, "built from another model.onnx than the artifact has now"),
    ],
)
def test_engines_that_do_not_fit_say_why(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    folder = artifact_with(tmp_path / "out", mine=record(**changes))
    message = problem(folder)
    assert words in message
    assert message.endswith(f"run hybridge build-engine {folder} --target rtx-ampere --overwrite")
    assert words.removeprefix("mine (").rstrip(")") in problem(folder, requested="mine")


def test_a_damaged_record_is_one_reason_among_others(tmp_path: Path) -> None:
    folder = artifact_with(tmp_path / "out", bad=record(), good=record())
    (folder / "engines" / "bad" / "engine.json").write_text("{")
    assert find_engine(folder, None, AMPERE).folder.name == "good"
    with pytest.raises(ArtifactError, match=r"engine\.json: is not valid JSON"):
        find_engine(folder, "bad", AMPERE)
    (folder / "engines" / "good" / "engine.json").unlink()
    assert "bad (" in problem(folder) and "is not valid JSON" in problem(folder)
