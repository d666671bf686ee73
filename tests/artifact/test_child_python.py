"""A child process imports what its parent does, and nothing that lies in the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridge.artifact.child_python import child_command
from hybridge.artifact.errors import EngineError


def test_paths_and_arguments_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_module.py").write_text("VALUE = 3", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    code = "import own_module, sys; print(own_module.VALUE, *sys.argv[1:])"
    found = subprocess.run(child_command(code, "a b", "c"), capture_output=True, text=True, check=True)
    assert found.stdout == "3 a b c\n"


def test_the_current_folder_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = subprocess.run(child_command("import json, struct; print('clean')"), capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("clean\n", "")


def test_a_program_without_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(EngineError, match="expected a Python interpreter"):
        child_command("pass")
