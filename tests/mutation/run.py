"""Puts known faults into a copy of the repository, one at a time, and reports which of them the tests find.

    python -m tests.mutation.run [--area NAME ...] [--repository FOLDER] [--faults FILE] [--out FILE]

Each fault in faults.json is one replacement in one file, with the test files that should find it, the quickest first.
Found: a test fails, or the tests take more than LIMIT_S. Out of date: the text is not in the file exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 240
FOUND, MISSED, OUT_OF_DATE = "found", "missed", "out of date"
_PASSED = 0
_WRONG_LIST = (4, 5)  # pytest: no such file, no test in it
_NOT_COPIED = {".git", ".venv", "build", "dist"}


@dataclass(frozen=True)
class Fault:
    area: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]


def read_faults(path: Path) -> list[Fault]:
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in json.loads(path.read_text("utf-8"))]


def copy_sources(repository: Path, out: Path) -> None:
    top = str(repository)
    shutil.copytree(repository, out, symlinks=True, ignore=lambda folder, _: _NOT_COPIED if folder == top else ())


def run_tests(folder: Path, tests: Iterable[str]) -> int | None:
    """pytest's exit status; None where the time limit was reached."""
    # A fault can change a file without changing its size and second, which is what a .pyc file is checked by.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None
    if process.returncode in _WRONG_LIST:
        raise SystemExit(f"expected test files that exist, found:\n{output.decode()}")
    return process.returncode


def try_fault(folder: Path, fault: Fault) -> str:
    path = folder / fault.file
    original = path.read_text("utf-8") if path.exists() else ""
    if original.count(fault.text) != 1:
        return OUT_OF_DATE
    path.write_text(original.replace(fault.text, fault.replacement), "utf-8")
    try:
        return MISSED if run_tests(folder, fault.tests) == _PASSED else FOUND
    finally:
        path.write_text(original, "utf-8")


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--area", action="append", help="only faults of this area; may be repeated")
    parser.add_argument("--repository", type=Path, default=here.parents[1], help="checkout to test (this one)")
    parser.add_argument("--faults", type=Path, default=here / "faults.json", help="list of faults (faults.json)")
    parser.add_argument("--out", type=Path, help="file to append one JSON line per fault to")
    options = parser.parse_args()
    faults = [fault for fault in read_faults(options.faults) if options.area is None or fault.area in options.area]
    results: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="hybridge-faults-") as temporary:
        copy = Path(temporary) / "copy"
        copy_sources(options.repository, copy)
        for fault in faults:
            result = try_fault(copy, fault)
            results[fault.area, result] += 1
            print(f"{result:11} {fault.file}: {fault.replacement}", flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"file": fault.file, "text": fault.text, "result": result}) + "\n")
    for area in dict.fromkeys(fault.area for fault in faults):
        print(f"{area}: {results[area, FOUND]} of {sum(fault.area == area for fault in faults)} found")
    return int(any(result != FOUND for _, result in results))


if __name__ == "__main__":
    sys.exit(main())
