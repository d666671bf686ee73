"""The benchmark of states with rings, on the CPU and on small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks.state_rings import StateRingSettings
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY


@pytest.mark.slow
def test_it_measures_steps_with_and_without_rings(tmp_path: Path) -> None:
    settings = StateRingSettings(
        device="cpu", rows=3, steps=16, gate_tokens=5, gate_steps=18, repeats=1, model=TINY, work=str(tmp_path)
    )
    results = correct("state_rings", settings)["results"]
    assert set(results["step_ms"]) == set(results["served_step_ms"]) == {"plain", "rings"}
    assert results["kernels"] == {}
    assert results["slot_bytes_ratio"] > 1
