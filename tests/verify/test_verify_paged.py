"""Verification of paged artifacts: every way of driving one agrees, and a damaged one is found out by its layer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.verify.test_verify import perturb

OPTIONS = VerifyOptions(prompt_lengths=(1, 7, 33), decode_steps=3, tolerance=2e-5)


@pytest.mark.parametrize(
    ("model_type", "stored", "overrides"),
    [
        ("nemotron_h", "bfloat16", {}),
        pytest.param(
            "qwen3",
            "float16",
            {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_paged_artifact_agrees_with_transformers(
    model_type: str, stored: str, overrides: dict, artifacts: ArtifactCache
) -> None:
    exported = artifacts.get(model_type, stored, overrides, layout="paged")
    report = verify(exported.checkpoint, exported.folder, OPTIONS)
    failed = [c for c in report.comparisons if not c.passed]
    assert report.passed, (report.verdict(), failed[:3])
    compared = {(c.engine, c.scenario, c.item) for c in report.comparisons}
    for engine in ("onnxruntime", "onnxruntime-portable"):
        for scenario in ("one-shot prefill", "chunked prefill", "ragged batch", "prefill beside decode", "decode"):
            assert (engine, scenario, "logits") in compared
            assert (engine, scenario, "key") in compared
        assert (engine, "row without tokens", "unchanged") in compared
        assert (engine, "free blocks and slots", "unchanged") in compared
    assert ("onnxruntime-portable", "one-shot prefill", "hidden") in compared


def test_a_perturbed_weight_is_blamed_on_its_layer(artifacts: ArtifactCache, tmp_path: Path) -> None:
    exported = artifacts.get("nemotron_h", "float32", layout="paged", weights="copy")
    damaged = Path(shutil.copytree(exported.folder, tmp_path / "damaged"))
    shards = [read_safetensors(path) for path in sorted((damaged / "weights").iterdir())]
    (slot,) = (t for s in shards for name, t in s.tensors.items() if name.endswith("layers.1.mixer.down_proj.weight"))
    perturb(slot)
    report = verify(exported.checkpoint, damaged, replace(OPTIONS, prompt_lengths=(7,), decode_steps=1))
    assert not report.passed
    assert report.to_json()["first_failing_layer"] == 1


def test_the_torch_engine_agrees_with_transformers(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("nemotron_h", "bfloat16", {}, layout="paged")
    report = verify(exported.checkpoint, exported.folder, VerifyOptions("torch", (1, 7, 33), 3))
    assert report.passed, report.verdict()
    compared = {(c.scenario, c.item) for c in report.comparisons}
    assert {("one-shot prefill", "hidden"), ("free blocks and slots", "unchanged")} <= compared
