"""Modules that a run and the help pages must not import: each costs more time than the tokens of a small model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hybridge.artifact.engine_record import ENGINES_FOLDER
from hybridge.cli.main import COMMANDS
from tests.support.session_folders import copy_cpu_library

HEAVY = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "sympy", "pydantic", "rich", "jinja2")
CODE = """
import json, sys
from hybridge.cli.main import run_command
codes = [run_command(command) for command in json.loads(sys.argv[1])]
print(json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)
"""


def _modules(cache: Path, *commands: Sequence[str]) -> set[str]:
    """The modules of a process that runs the commands; rewritten graphs are kept below ``cache``."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    assert not any(codes), done.stderr
    return set(modules)


def test_a_second_run_imports_nothing_heavy(artifact: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(artifact, tmp_path / "artifact")
    (folder / ENGINES_FOLDER).mkdir()  # as after build-engine: an engine for this machine is looked for
    arguments = ("run", str(folder), "--prompt", "The sea", "--max-new-tokens", "2", "--quiet")
    copy_cpu_library(tmp_path)
    _modules(tmp_path, arguments)  # rewrites the graph
    assert not _modules(tmp_path, arguments).intersection(HEAVY)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    help_pages = [(name, "--help") for name in COMMANDS]
    modules = _modules(tmp_path, ("--help",), *help_pages)
    assert not modules.intersection(HEAVY, {"onnxruntime", "tokenizers", "tensorrt", "tensorrt_rtx"})
