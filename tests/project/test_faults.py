"""The list of known faults fits the sources: each text is in its file once, and its tests exist."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.run import read_faults

ROOT = Path(__file__).parents[2]


def test_each_fault_can_be_put_into_its_file() -> None:
    faults = read_faults(ROOT / "tests" / "mutation" / "faults.json")
    assert faults
    for fault in faults:
        assert (ROOT / fault.file).read_text("utf-8").count(fault.text) == 1, f"out of date: {fault}"
        assert all((ROOT / tests).exists() for tests in fault.tests), f"expected test files that exist: {fault}"
