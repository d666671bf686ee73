"""Run benchmarks: python -m benchmarks [NAME ...] [OPTION ...].

One NAME runs here; NAME --help shows its options, --list all names. Several names, or none for those of
docs/reference/benchmarks.md, run one after another in processes of their own and print one JSON document.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import takewhile

from benchmarks.machine import ROOT
from benchmarks.registry import ENTRIES, ON_PAGE, benchmark
from benchmarks.runner import table_text


def main(argv: list[str]) -> int:
    """The exit code: 0, 1 when a benchmark failed or found wrong results, 2 for bad usage."""
    names = list(takewhile(lambda text: not text.startswith("-"), argv))
    options = argv[len(names) :]
    unknown = sorted(set(names) - set(ENTRIES))
    if unknown:
        print(f"error: expected names out of {', '.join(ENTRIES)}, found {', '.join(unknown)}", file=sys.stderr)
        return 2
    if len(names) == 1:
        return benchmark(names[0]).main(options, ENTRIES[names[0]].measures)
    if "--help" in options or "-h" in options:
        print(__doc__)
        return 0
    if "--list" in options:
        print("\n".join(f"{name:21} {entry.measures} (against: {entry.peer})" for name, entry in ENTRIES.items()))
        return 0
    return run_all(names or list(ON_PAGE), options)


def run_all(names: list[str], options: list[str]) -> int:
    """Run each of ``names`` in a process of its own and print one document of all."""
    documents, failed = {}, False
    for name in names:
        command = [sys.executable, "-m", "benchmarks", name, "--json", *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        failed = failed or done.returncode != 0
        if done.stdout.strip():
            documents[name] = json.loads(done.stdout)
            print(table_text(documents[name]), file=sys.stderr)
    print(json.dumps({"benchmarks": documents}, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
