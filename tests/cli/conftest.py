"""One exported artifact for all tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.cli.main import run_command
from tests.cli.command import ROOT

CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return CHECKPOINT


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped checkpoint, exported by the command itself. Tests must not change it."""
    out = tmp_path_factory.mktemp("exported") / "artifact"
    assert run_command(["export", str(CHECKPOINT), str(out), "--max-seq-len", "300", "--quiet"]) == 0
    return out


@pytest.fixture(scope="session")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in layout paged."""
    out = tmp_path_factory.mktemp("exported") / "paged"
    options = ("--layout", "paged", "--max-seq-len", "300", "--max-batch", "1")
    assert run_command(["export", str(CHECKPOINT), str(out), *options, "--quiet"]) == 0
    return out
