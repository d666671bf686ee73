"""What ``hybridge verify`` finds for the checkpoints that ship.

python -m benchmarks.verify > benchmarks/results/verify.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hybridge
from benchmarks.machine import machine_json

CHECKPOINTS = Path(__file__).resolve().parents[1] / "examples" / "checkpoints"


def verified(checkpoint: Path, out: Path) -> dict[str, Any]:
    """The verdict on ``checkpoint``, exported to ``out``, and the largest error of each scenario on each engine."""
    hybridge.export(checkpoint, out)
    report = hybridge.verify(checkpoint, out)
    largest: dict[str, dict[str, float]] = {}
    for found in report.comparisons:
        scenarios = largest.setdefault(found.engine, {})
        scenarios[found.scenario] = max(scenarios.get(found.scenario, 0.0), found.error)
    names = ("passed", "verdict", "model_type", "reference", "tolerance")
    return {**{name: report.to_json()[name] for name in names}, "largest_errors": largest}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 when a checkpoint is not verified. ``argv``: None for the arguments of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verify", description="Verify the checkpoints that ship and print one JSON document."
    )
    parser.parse_args(argv)
    document: dict[str, Any] = {"benchmark": "verify", **machine_json(), "checkpoints": {}}
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        for checkpoint in sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir()):
            document["checkpoints"][checkpoint.name] = verified(checkpoint, Path(name) / checkpoint.name)
    print(json.dumps(document, indent=2))
    return 0 if all(found["passed"] for found in document["checkpoints"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
