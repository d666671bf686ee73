"""The tests marked ``gpu``: found, dealt to processes that run beside each other, counted from what they print.

Most of their time is NVRTC compiling one variant after another, which is why processes share the work: every one
compiles what its tests need, and the cache on disk is common to all. Nothing is timed, so that they may share a GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_stages.processes import ROOT, Command, Outcome, run_all

# The tools of development (pytest-timeout, xdist) that pyproject's options name may be absent.
PYTEST = (sys.executable, "-m", "pytest", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider")
MARK = "mark.gpu"
# Neighbours use the same variants of kernels: they stay together.
BLOCK = 6
_LINE = re.compile(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)(?:\s|$)", re.MULTILINE)
_UNCOLLECTED = re.compile(r"^ERROR (\S+\.py)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Collection:
    """ids: the tests, in order. uncollected: file to why it cannot be imported here."""

    ids: tuple[str, ...]
    uncollected: dict[str, str] = field(default_factory=dict)


def gpu_test_files() -> tuple[str, ...]:
    """Files with tests that need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(str(file.relative_to(ROOT)) for file in files if MARK in file.read_text(encoding="utf-8"))


def collect(files: Sequence[str], chosen: str, log: Path, limit: float) -> Collection:
    """Tests of ``files`` that ``chosen`` (pytest's -k, empty for all) selects."""
    options = ("-m", "gpu", *(("-k", chosen) if chosen else ()))
    run = ("--collect-only", "-q", "--continue-on-collection-errors", *options)
    run_all([Command((*PYTEST, *run, *files), log)], limit)
    text = log.read_text(encoding="utf-8", errors="replace")
    ids = tuple(line for line in text.splitlines() if line.startswith("tests/") and "::" in line)
    return Collection(ids, {match[1]: match[2] or "see the log" for match in _UNCOLLECTED.finditer(text)})


def dealt(ids: Sequence[str], shards: int, block: int = BLOCK) -> list[list[str]]:
    """``ids`` in at most ``shards`` lists of about equal length, ``block`` neighbours together."""
    blocks = [list(ids[begin : begin + block]) for begin in range(0, len(ids), block)]
    lists = [[test for block in blocks[index::shards] for test in block] for index in range(shards)]
    return [tests for tests in lists if tests]


def shard_commands(
    ids: Sequence[str], shards: int, folder: Path, name: str, prefix: Sequence[str] = ()
) -> list[Command]:
    """One pytest a shard, behind ``prefix``; its tests are in a file of arguments, its JUnit report beside the log."""
    commands = []
    # Behind a prefix tests are slow and few.
    for index, tests in enumerate(dealt(ids, shards, 1 if prefix else BLOCK)):
        arguments, report = folder / f"{name}-{index}.args", folder / f"{name}-{index}.xml"
        arguments.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        options = ("-v", "--no-header", "--tb=short", f"--junitxml={report}", f"@{arguments}")
        commands.append(Command((*prefix, *PYTEST, *options), folder / f"{name}-{index}.log"))
    return commands


def counted(outcomes: Sequence[Outcome], expected: int) -> dict[str, object]:
    """How many tests passed, failed, were skipped and never ran, and which ones failed; also of stopped processes."""
    results: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.command.log.exists():
            text = outcome.command.log.read_text(encoding="utf-8", errors="replace")
            results |= {match[1]: match[2] for match in _LINE.finditer(text)}
    kinds = list(results.values())
    return {
        "tests": expected,
        "passed": kinds.count("PASSED"),
        "failed": sorted(name for name, kind in results.items() if kind in ("FAILED", "ERROR")),
        "skipped": kinds.count("SKIPPED"),
        "not_run": expected - len(results),
    }
