"""Run the kernel benchmarks and print one JSON document.

python -m benchmarks.kernels --json [--check] [--only TEXT] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any

from benchmarks.kernels.case import checked, measured
from benchmarks.kernels.device import device_json
from benchmarks.machine import machine_json

# Each module has cases() -> Iterator[KernelCase].
GROUPS = (
    "update_ssm_state_decode",
    "update_ssm_state_prefill",
    "mamba2_conv_scan",
    "causal_conv1d",
    "linear_decode",
    "routed_experts",
    "gated_delta_rule_decode",
    "gated_delta_rule_prefill",
    "paged_attention_prefill",
    "paged_attention_decode",
    "candidates",
)


def main() -> int:
    """The exit code: 0, or 1 when a result was wrong (a missed target is a finding, not a failure)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which groups: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--check", action="store_true", help="compare results, time nothing")
    parser.add_argument("--json", action="store_true", help="print the JSON document (default: a table)")
    parser.add_argument("--commit", help="the commit that runs, where the files are not in a checkout")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(GROUPS))
    if unknown:
        parser.error(f"expected groups out of {', '.join(GROUPS)}, found {', '.join(unknown)}")
    document: dict[str, Any] = {"benchmark": "kernels", **machine_json(), "device": device_json(), "groups": {}}
    if arguments.commit:
        document["commit"] = arguments.commit
    for name in arguments.names or GROUPS:
        rows = []
        for case in importlib.import_module(f"benchmarks.kernels.{name}").cases():
            if arguments.only in case.name:
                rows.append(checked(case) if arguments.check else measured(case))
                print(_line(name, rows[-1]), file=sys.stderr, flush=True)
        document["groups"][name] = rows
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0 if all(row["correct"] for rows in document["groups"].values() for row in rows) else 1


def _line(group: str, row: dict[str, Any]) -> str:
    if not row["correct"]:
        return f"{group:26} {row['case']:44} WRONG: error {row['error']:.3g} (at most {row['tolerance']:.3g})"
    if "us" not in row:
        return f"{group:26} {row['case']:44} error {row['error']:.3g} (at most {row['tolerance']:.3g})"
    peer = f"  {row['speed_up']:5.2f}x {row['best_peer']}" if "speed_up" in row else ""
    missed = [name for name, target in row["targets"].items() if not target["met"]]
    numbers = f"{row['us']['median']:9.2f} us  floor {row['floor_us']:8.2f}  {100 * row['copy_bandwidth_share']:5.1f}%"
    return f"{group:26} {row['case']:44} {numbers}{peer}{'  MISS ' + ', '.join(missed) if missed else ''}"


if __name__ == "__main__":
    sys.exit(main())
