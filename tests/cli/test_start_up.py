"""What a run must not import: each of these would cost more than the tokens of a small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "sympy", "pydantic", "rich", "jinja2")
CODE = """
import json, sys
from hybridge.cli.main import run_command
code = run_command(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def _modules(cache: Path, *arguments: str) -> set[str]:
    """The modules of a process that runs the command; rewritten graphs are kept below ``cache``."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


def test_a_second_run_imports_nothing_heavy(artifact: Path, tmp_path: Path) -> None:
    arguments = ("run", str(artifact), "--prompt", "The sea", "--max-new-tokens", "2", "--quiet")
    _modules(tmp_path, *arguments)  # rewrites the graph
    assert not _modules(tmp_path, *arguments).intersection(HEAVY)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    assert not _modules(tmp_path, "--help").intersection(HEAVY, {"onnxruntime", "tokenizers"})
