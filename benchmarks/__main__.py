"""Run benchmarks one after another, each in a process of its own, and print one JSON document."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.machine import ROOT
from benchmarks.report import document_text, table_text

BENCHMARKS = (
    "export",
    "export_qwen3_5",
    "start_up",
    "cpu_decode",
    "step_cost",
    "perplexity",
    "transformers_host",
    "scheduler",
    "serving",
)


def main() -> int:
    """The exit code: 0, or 1 when a benchmark failed or found wrong results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--repeats", help="measurements of each kind (default: each benchmark's own)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"expected names out of {', '.join(BENCHMARKS)}, found {', '.join(unknown)}")
    documents, failed = {}, False
    for name in arguments.names or BENCHMARKS:
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
        if arguments.repeats:
            command += ["--repeats", arguments.repeats]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        failed = failed or done.returncode != 0
        if done.stdout.strip():
            documents[name] = json.loads(done.stdout)
            print(table_text(documents[name]), file=sys.stderr)
    print(document_text({"benchmarks": documents}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
