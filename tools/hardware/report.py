"""The report of a check: its finished steps, a verdict, and one JSON file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hardware.steps import FAILED, PASSED, UNSUPPORTED
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.version import __version__

VERSION = 2
SCHEMA = Path(__file__).with_name("report.schema.json")


class Report:
    """``machine``: the record of the machine. ``artifacts``: by name."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self.machine = machine
        self.artifacts: dict[str, Any] = {}
        self.steps: list[Mapping[str, Any]] = []
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._started = time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether at least one form was checked, and every step of each form that has its artifact passed."""
        states = [step["status"] for step in self.steps]
        checked = any("form" in step and step["status"] == PASSED for step in self.steps)
        return checked and all(state in (PASSED, UNSUPPORTED) for state in states)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of a step, and print a line about it."""
        self.steps.append(record)
        why = record.get("error") or record.get("reason") or ""
        place = f"{record.get('form', ''):24} {record['step']:10}"
        line = f"{place} {record['status']:11} {record['seconds']:8.1f} s  {why}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    def run(self, name: str, step: Callable[[], None]) -> bool:
        """Run and record a step that all forms need; whether it passed."""
        started = time.monotonic()
        found: dict[str, Any] = {}
        try:
            step()
        except HybridgeError as error:
            found["error"] = str(error)
        status = FAILED if found else PASSED
        self.add({"step": name, "status": status, "seconds": round(time.monotonic() - started, 3), **found})
        return status == PASSED

    def document(self) -> dict[str, Any]:
        """The report, in the form of report.schema.json."""
        return {
            "hw_check": VERSION,
            "hybridge": __version__,
            "created": self._created,
            "seconds": round(time.monotonic() - self._started, 1),
            "machine": self.machine,
            "artifacts": self.artifacts,
            "passed": self.passed,
            "steps": [dict(step) for step in self.steps],
        }

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")
