"""The benchmark of sampled steps, on the CPU and on small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from benchmarks.sampled_steps import SampledStepSettings
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY


@pytest.mark.slow
def test_it_measures_greedy_and_sampled_steps(tmp_path: Path) -> None:
    settings = SampledStepSettings(device="cpu", rows=3, steps=4, repeats=1, model=TINY, work=str(tmp_path))
    results = correct("sampled_steps", settings)["results"]
    assert set(results["step_ms"]) == {"greedy", "sampled"} and results["step_ratio"]["median"] > 0
