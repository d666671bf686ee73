"""The kernel benchmarks have the cases of the kept run, with the same floors, goals and tolerances."""

from __future__ import annotations

import importlib
import json

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

from benchmarks.kernels.case import COPY_GBPS
from benchmarks.kernels.groups import GROUPS
from benchmarks.render import RESULTS

# Measured once, no longer a case: the parts of the operator as separate launches.
SEPARATE = ", separate"


@pytest.mark.parametrize("group", GROUPS)
def test_cases_are_those_of_the_kept_run(group: str) -> None:
    module, function = GROUPS[group].split(":")
    found = getattr(importlib.import_module(f"benchmarks.kernels.{module}"), function)()
    cases = {case.name: case for case in found}
    kept = json.loads((RESULTS / "kernels.json").read_text(encoding="utf-8"))["results"]["groups"][group]
    rows = {row["case"]: row for row in kept if not row["case"].endswith(SEPARATE)}
    for name, row in rows.items():
        case = cases[name]
        assert row["tolerance"] == case.tolerance and row["floor_us"] == pytest.approx(case.bytes / COPY_GBPS / 1e3)
        goals = {
            "speed_up": case.goal(row["peers_us"]) if "peers_us" in row else None,
            "copy_bandwidth_share": case.bandwidth_share,
        }
        kept_goals = {name: target["at_least"] for name, target in row["targets"].items()}
        assert kept_goals == {name: goal for name, goal in goals.items() if goal is not None}
