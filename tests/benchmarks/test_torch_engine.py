"""The benchmark of the torch engine, on the CPU and on small sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks import torch_engine
from benchmarks.torch_engine import TorchEngineSettings
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY

SETTINGS = TorchEngineSettings(
    device="cpu",
    new_tokens=3,
    prompt_tokens=5,
    gate_tokens=9,
    gate_steps=2,
    repeats=1,
    model=TINY,
    batches=(1, 2),
    prompts=(7, 16),
    decode_goals={1: 1.0, 2: 1e12},
    prompt_goals={7: 1e6, 16: 0.0},
)


@pytest.mark.slow
def test_it_measures_what_the_goals_name(tmp_path: Path) -> None:
    document = correct("torch_engine", replace(SETTINGS, work=str(tmp_path)))
    assert len(document["gates"]) == 3
    assert all("transformers in float32" in gate["checks"] for gate in document["gates"][:2])
    assert [target["met"] for target in document["targets"]] == [True, False, True, False]
    results = document["results"]
    assert set(results["decode_tokens_per_s"]) == {"1", "2"} and set(results["prompt_ms"]) == {"7", "16"}
    assert set(results["decode_tokens_per_s"]["2"]) == {"ours", "ours_greedy", "transformers_greedy"}
    assert set(results["served_tokens_per_s"]["2"]) == {"chained", "single"}
    assert set(results["device_step_us"]) == {"1", "2"}
    assert "work" not in document["settings"]
    # A second run takes what lies there, and links weights that did not come along.
    weights = torch_engine.prepared(tmp_path, SETTINGS) / "weights" / "model.safetensors"
    weights.unlink()
    torch_engine.prepared(tmp_path, SETTINGS)
    assert weights.stat().st_nlink == 3
