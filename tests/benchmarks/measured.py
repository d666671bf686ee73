"""A benchmark's document, measured with small settings."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.registry import benchmark


def document(name: str, settings: Any) -> dict[str, Any]:
    """What ``python -m benchmarks NAME --json`` prints."""
    printed: dict[str, Any] = json.loads(json.dumps(benchmark(name).document(settings)))
    return printed


def correct(name: str, settings: Any) -> dict[str, Any]:
    """``document``, whose gates all passed."""
    found = document(name, settings)
    assert found["correct"], found["gates"]
    return found
