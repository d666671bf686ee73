"""Artifacts agree with transformers through the engine; changed files and options that cannot be followed are named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import ArtifactError, CheckpointError, SettingError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.verification.compare import largest_row_error, relative_error
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample
from tests.support.export_cases import CASES

# Relative L2 norm. ONNX Runtime computes every artifact in float32, and so is the reference; sums differ in order.
TOLERANCE = 1e-5
QUICK = VerifyOptions(engine="onnxruntime", prompt_lengths=(6,), decode_steps=1)
# One of each kind of recurrent layer. The others are compared on push by the torch engine
# (runtime/torch/test_families.py) and, in layout paged, by ONNX Runtime (runtime/onnxruntime/test_paged_engine.py).
ON_PUSH = ("nemotron_h copied", "qwen3_next experts bf16 as fp16")


@pytest.mark.parametrize("name", sample(CASES, ON_PUSH))
def test_artifact_agrees_with_transformers(name: str, artifacts: ArtifactCache) -> None:
    exported = CASES[name].get(artifacts)
    options = VerifyOptions(prompt_lengths=(1, 7, 33), decode_steps=4, tolerance=TOLERANCE)
    report = verify(exported.checkpoint, exported.folder, options)
    failed = [c for c in report.comparisons if not c.passed]
    assert report.passed, (report.verdict(), failed[:3], max(c.error for c in failed))
    assert report.to_json()["passed"] is True
    compared = {(c.scenario, c.item) for c in report.comparisons}
    items = {"logits"}
    items |= {"key", "value"} if exported.config.kv_layers else set()
    items |= {"conv_state", "recurrent_state"} if exported.config.recurrent_layers else set()
    for scenario in ("one-shot prefill", "chunked prefill", "end beside prompt", "ragged batch", "decode"):
        assert {(scenario, item) for item in items} <= compared
    assert {c.engine for c in report.comparisons if c.item == "hidden"} == set(report.engines)
    assert ("row without tokens", "unchanged") in compared


def test_a_checkpoint_of_another_model_is_refused(artifacts: ArtifactCache) -> None:
    exported, other = CASES["nemotron_h copied"].get(artifacts), CASES["llama bf16 as fp32, all logits"].get(artifacts)
    with pytest.raises(CheckpointError, match="expected the checkpoint of the artifact, with model_type nemotron_h"):
        verify(other.checkpoint, exported.folder, QUICK)


def perturb(slot: TensorSlot) -> None:
    """Change half of a stored tensor by a few per cent."""
    values = np.fromfile(slot.path, np.float32, slot.nbytes // 4, offset=slot.offset)
    values[::2] *= 1.05
    with slot.path.open("r+b") as file:
        file.seek(slot.offset)
        file.write(values.tobytes())


def test_another_checkpoint_is_not_the_artifact_s(artifacts: ArtifactCache, tmp_path: Path) -> None:
    from tests.support.tiny_models import save_tiny_model

    case = CASES["nemotron_h copied"]
    other = save_tiny_model(tmp_path / "other", "nemotron_h", seed=1, **case.overrides)
    report = verify(other, case.get(artifacts).folder, QUICK)
    assert not report.passed
    assert report.first_failing_layer == 0


@pytest.fixture
def copied(artifacts: ArtifactCache, tmp_path: Path) -> Exported:
    exported = CASES["nemotron_h copied"].get(artifacts)
    folder = Path(shutil.copytree(exported.folder, tmp_path / "copy"))
    return Exported(exported.checkpoint, folder, exported.options, exported.report)


@pytest.mark.parametrize("name", ["model.onnx", "config.json", "weights/derived.safetensors"])
def test_a_changed_or_missing_file_is_named(name: str, copied: Exported) -> None:
    path = copied.folder / name
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"e", b"f", 1))
    with pytest.raises(ArtifactError, match=name.rsplit("/", 1)[-1]):
        verify(copied.checkpoint, copied.folder, QUICK)
    path.unlink()
    with pytest.raises(ArtifactError, match=name.rsplit("/", 1)[-1]):
        verify(copied.checkpoint, copied.folder, QUICK)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt_lengths": ()}, "prompt_lengths"),
        ({"prompt_lengths": (4, 0)}, "prompt_lengths"),
        ({"decode_steps": -1}, "decode_steps"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": float("inf")}, "tolerance: expected a positive finite number, found inf"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"engine": "abacus"}, "engine: expected one of auto, onnxruntime"),
    ],
    ids=str,
)
def test_options_that_cannot_be_followed(options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=f"^{named}"):
        VerifyOptions(**options)


def test_lengths_that_do_not_fit(artifacts: ArtifactCache) -> None:
    exported = CASES["nemotron_h copied"].get(artifacts)
    with pytest.raises(SettingError, match="with its decode steps, found 97: pass shorter `prompt_lengths`"):
        verify(exported.checkpoint, exported.folder, VerifyOptions(prompt_lengths=(95,), decode_steps=2))


def test_relative_error() -> None:
    three_four = np.array([3.0, 4.0], np.float32)
    assert relative_error(three_four, three_four) == 0.0
    assert relative_error(np.array([3.0, 4.5], np.float32), three_four) == pytest.approx(0.1)
    assert relative_error(np.array([0.0, 0.25]), np.zeros(2)) == 0.25
    assert relative_error(np.zeros(3), np.zeros(2)) == float("inf")
    assert not relative_error(np.array([np.nan, 4.0]), three_four) <= 1.0


def test_one_wrong_row_is_not_lost_among_many() -> None:
    right = np.ones((10_000, 4))
    wrong = right.copy()
    wrong[77] *= 1.005
    assert relative_error(wrong, right) < 1e-4 and largest_row_error(wrong, right) == pytest.approx(0.005)
    assert largest_row_error(right[:-1], right) == largest_row_error(right * np.nan, right) == float("inf")
