"""A state in 16 bits loses what a state in 32 bits keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.plots import plot_state_precision
from benchmarks.state_precision import BAD, CURVES, GOOD, PrecisionSettings
from tests.benchmarks.measured import correct


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    sizes = {"key_heads": 1, "value_heads": 2, "key_size": 16, "value_size": 16}
    results: dict[str, Any] = correct("state_precision", PrecisionSettings(400, 100, **sizes))["results"]
    return results


def test_errors_of_every_pair_of_types(results: dict[str, Any]) -> None:
    errors = results["relative_error"]
    assert results["tokens"] == [100, 200, 300, 400]
    assert set(errors) == set(CURVES)
    assert np.isfinite(list(errors.values())).all()
    # Rounding the output to float16 alone costs 2e-4.
    assert 1e-4 < max(errors[GOOD]) < 4e-4
    assert min(errors[BAD]) > 4 * max(errors[GOOD])


def test_the_picture_is_the_same_for_the_same_numbers(results: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the plot extra (matplotlib)")
    for name in ("a.svg", "b.svg"):
        plot_state_precision(results, tmp_path / name, 1e-3)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and b"float32 state" in first
