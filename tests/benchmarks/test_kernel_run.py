"""A run of the kernel benchmarks that is interrupted keeps the rows that it has."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

from benchmarks.kernels import run
from benchmarks.kernels.case import KernelCase


def test_an_interrupted_run_has_its_rows_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def measured(case: KernelCase) -> dict[str, Any]:
        begun.append(case.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return {"case": case.name, "error": 0.0, "tolerance": 0.0, "correct": True}

    monkeypatch.setattr(run, "device_json", dict)
    monkeypatch.setattr(run, "measured", measured)
    report = run.run(run.KernelSettings(groups=("sampling", "drafts")))
    assert [row["case"] for row in report.results["groups"]["sampling"]] == begun[:2]
    assert report.results["interrupted"] and "drafts" not in report.results["groups"]
