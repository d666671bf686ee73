"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from benchmarks.machine import OtherWork
from benchmarks.report import Report, document_text, table_text


def run_command(
    description: str, benchmark: Callable[[int], Report], repeats: int, argv: Sequence[str] | None = None
) -> int:
    """Parse ``argv``, run ``benchmark`` with the number of repeats and print its document or table.

    argv: None for the arguments of the process.
    Returns the exit code: 0, or 1 when a gate failed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--repeats", type=_positive, default=repeats, help="measurements of each kind (%(default)s)")
    arguments = parser.parse_args(argv)
    other_work = OtherWork()
    report = benchmark(arguments.repeats)
    document = report.to_json()
    document["machine"]["other_work"] = other_work.share()
    print(document_text(document) if arguments.json else table_text(document))
    if not report.passed:
        print(f"{report.benchmark}: wrong results, so that no number was reported", file=sys.stderr)
    return 0 if report.passed else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {value}")
    return value
