"""hybridge quantize: its report, and errors in the words of the command line."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from hybridge.quantization import quantizer, run
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]


def test_report(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    outcome = hybridge(capfd, "quantize", checkpoint, tmp_path / "out", "--method", "rtn", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.document
    assert 0.35 < found["weight_bytes"] / found["checkpoint_bytes"] < 0.45 and len(found["matrices"]) == 29
    again = ("--overwrite", "--format", "int8", "--group-size", "32", "--method", "rtn")
    table = hybridge(capfd, "quantize", checkpoint, tmp_path / "out", *again)
    assert table.code == 0 and "int8, groups of 32" in table.out and "8.50" in table.out
    described = hybridge(capfd, "inspect", tmp_path / "out", "--json")
    assert described.code == 0 and described.document["refusal"] is None


def test_an_interruption_names_what_is_left(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    arguments = ("quantize", checkpoint, tmp_path / "out", "--method", "rtn")
    monkeypatch.setattr(run, "check_unchanged", interrupt)
    outcome = hybridge(capfd, *arguments)
    left = tmp_path / ".out.hybridge-quantize"
    assert outcome.code == 130 and left.is_dir()
    remedy = "run the command again with --resume to continue"
    assert outcome.error == f"interrupted: {left} keeps the finished layers: {remedy}"

    def fill_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "check_unchanged", fill_disk)
    outcome = hybridge(capfd, *arguments, "--resume")
    full = f"{tmp_path / 'out'}: the disk is full: free space; {left} keeps the finished layers"
    assert outcome.code == 2 and outcome.error == f"{full}: pass --resume to continue"
    monkeypatch.setattr(quantizer, "work_folder", interrupt)
    shutil.rmtree(left)
    assert hybridge(capfd, *arguments).error == "interrupted: the command did not finish and left no partial output"


def test_errors_name_flags(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    outcome = hybridge(capfd, "quantize", checkpoint, tmp_path / "out", "--text", "text.txt")
    assert (
        outcome.code == 2 and outcome.error == "--text: expected none for the method mse without --bits, found text.txt"
    )
    (tmp_path / "taken").mkdir()
    taken = hybridge(capfd, "quantize", checkpoint, tmp_path / "taken", "--method", "rtn")
    assert taken.code == 2 and "pass --overwrite" in taken.error
