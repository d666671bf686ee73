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
    parser = _parser(description, repeats)
    arguments = parser.parse_args(argv)
    return _run(lambda: benchmark(arguments.repeats), arguments.json)


def run_in_folder(
    description: str,
    benchmark: Callable[[int, str | None], Report],
    repeats: int,
    argv: Sequence[str] | None = None,
) -> int:
    """As ``run_command``, for one that first makes a checkpoint and artifacts, and gets the folder of --work."""
    parser = _parser(description, repeats)
    parser.add_argument("--work", metavar="FOLDER", help="keeps checkpoint and artifacts from run to run")
    arguments = parser.parse_args(argv)
    return _run(lambda: benchmark(arguments.repeats, arguments.work), arguments.json)


def _parser(description: str, repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--repeats", type=_positive, default=repeats, help="measurements of each kind (%(default)s)")
    return parser


def _run(benchmark: Callable[[], Report], as_json: bool) -> int:
    other_work = OtherWork()
    report = benchmark()
    document = report.to_json()
    document["machine"]["other_work"] = other_work.share()
    print(document_text(document) if as_json else table_text(document))
    if not report.passed:
        print(f"{report.benchmark}: wrong results, so that no number was reported", file=sys.stderr)
    return 0 if report.passed else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {value}")
    return value
