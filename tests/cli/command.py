"""Run the command line in this process, or as a user does in another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hybridge.cli.main import run_command

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """What one command returned and wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document; anything else there is an error."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error message, without its prefix."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "Traceback" not in self.err, self.err
        return lines[0].removeprefix("error: ")


def hybridge(capfd: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run ``hybridge ARGUMENTS`` in this process."""
    capfd.readouterr()
    code = run_command([str(a) for a in arguments])
    captured = capfd.readouterr()
    return Outcome(code, captured.out, captured.err)
