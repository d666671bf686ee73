"""The JSON document of a benchmark, and its table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.machine import machine_json

# More than this part of the processor time taken by others makes the numbers useless.
QUIET_SHARE = 0.05
Direction = Literal["at most", "at least"]


@dataclass(frozen=True)
class Gate:
    """A comparison with the reference that has to hold before any number counts.

    ``value`` must not exceed ``limit``; ``checks`` says what was compared.
    """

    checks: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """False also when the value is not a number."""
        return self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the outcome."""
        return {"checks": self.checks, "value": self.value, "limit": self.limit, "passed": self.passed}


@dataclass(frozen=True)
class Target:
    """One measured value against the value that was aimed at."""

    name: str
    value: float
    direction: Direction
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value <= self.limit if self.direction == "at most" else self.value >= self.limit

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the outcome."""
        fields = {"name": self.name, "value": self.value, "direction": self.direction, "limit": self.limit}
        return {**fields, "unit": self.unit, "met": self.met}


@dataclass(frozen=True)
class Report:
    """One benchmark's outcome. ``settings`` are shapes and options, ``results`` what was measured."""

    benchmark: str
    settings: Mapping[str, Any]
    gates: tuple[Gate, ...]
    results: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()

    @property
    def passed(self) -> bool:
        """True when every gate passed; a missed target is a finding, not a failure."""
        return all(gate.passed for gate in self.gates)

    def to_json(self) -> dict[str, Any]:
        """The document. Without green gates it holds no numbers."""
        document: dict[str, Any] = {
            "benchmark": self.benchmark,
            **machine_json(),
            "settings": dict(self.settings),
            "correct": self.passed,
            "gates": [gate.to_json() for gate in self.gates],
        }
        if self.passed:
            document["results"] = dict(self.results)
            document["targets"] = [target.to_json() for target in self.targets]
        return document


def document_text(document: Mapping[str, Any]) -> str:
    """The JSON text that is printed."""
    return json.dumps(document, indent=2)


def table_text(document: Mapping[str, Any]) -> str:
    """A readable summary of one document: gates, then targets."""
    lines = [f"{document['benchmark']}  (commit {document['commit']}, {document['machine']['cpu']})"]
    others = document["machine"].get("other_work")
    if others is not None and others > QUIET_SHARE:
        lines.append(f"  noisy: other work took {100 * others:.0f}% of the processor time")
    for gate in document["gates"]:
        state = "ok  " if gate["passed"] else "FAIL"
        lines.append(f"  gate   {state} {gate['checks']}: {gate['value']:.3g} (at most {gate['limit']:.3g})")
    for target in document.get("targets", ()):
        state = "met " if target["met"] else "MISS"
        wanted = f"{target['direction']} {target['limit']:g}"
        lines.append(f"  target {state} {target['name']}: {target['value']:.4g} {target['unit']} ({wanted})")
    return "\n".join(lines)
