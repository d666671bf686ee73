#!/usr/bin/env python3
"""Turns the docstrings of the installed Python packages into training text.

python tools/demo_training/package_text.py --out python-packages.txt
"""

from __future__ import annotations

import argparse
import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MIN_CHARS = 400


def docstrings(source: str) -> str:
    """All docstrings of a module, separated by blank lines; "" if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, _DEFINITIONS))
    return "\n\n".join(text.replace("\f", " ") for text in found if text)


def documents(folder: Path, most_bytes: int, seed: int = 0) -> Iterator[str]:
    """Yields the docstrings of modules in ``folder`` in random order, ``most_bytes`` or a little more."""
    paths = sorted(folder.rglob("*.py"))
    Random(seed).shuffle(paths)
    seen: set[str] = set()
    left = most_bytes
    for path in paths:
        text = docstrings(path.read_text(encoding="utf-8", errors="ignore")) if path.is_file() else ""
        if len(text) < MIN_CHARS or text in seen:
            continue
        seen.add(text)
        yield text
        left -= len(text.encode())
        if left <= 0:
            return


def main() -> int:
    """Writes one file of documents, separated by form feeds; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--folder", type=Path, default=Path(sysconfig.get_path("purelib")), help="site-packages")
    parser.add_argument("--megabytes", type=int, default=24)
    options = parser.parse_args()
    found = list(documents(options.folder, options.megabytes * 1_000_000))
    options.out.write_text("\n\f\n".join(found) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(found)} documents, {options.out.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
