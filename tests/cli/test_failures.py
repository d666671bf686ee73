"""Every failure becomes one sentence and an exit code; with --json also one document."""

from __future__ import annotations

import errno

import click
import pytest

from hybridge.artifact.errors import CheckpointError, HybridgeError
from hybridge.cli.failures import failure_of
from tests.cli.command import hybridge


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (CheckpointError("a: expected b, found c"), 2, "a: expected b, found c"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "out/x"), 2, "out/x: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), 2, "out: Permission denied"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "[export]"),
        (ModuleNotFoundError("No module named 'onnxruntime.capi'", name="onnxruntime.capi"), 2, "[cpu]"),
        (MemoryError(), 2, "out of memory"),
    ],
)
def test_user_failures(error: BaseException, code: int, words: str) -> None:
    failure = failure_of(error)
    assert failure.exit_code == code and words in failure.message and not failure.internal


@pytest.mark.parametrize("error", [ValueError("oops"), ModuleNotFoundError("No module named 'x'", name="x")])
def test_bugs_have_their_own_exit_code(error: Exception) -> None:
    failure = failure_of(error)
    assert failure.exit_code == 3 and failure.internal and type(error).__name__ in failure.message


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(path: object, **options: object) -> None:
        print("a library prints this")
        raise error

    monkeypatch.setattr("hybridge.api.inspect", fail)


@pytest.mark.parametrize(
    ("error", "code"),
    [(HybridgeError("two\nlines"), 2), (KeyboardInterrupt(), 130), (OSError(errno.EIO, "I/O error"), 2)],
)
def test_error_document_is_all_of_standard_output(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    raising(monkeypatch, error)
    outcome = hybridge(capfd, "inspect", "x", "--json")
    assert outcome.code == code
    assert outcome.document == {"error": outcome.error, "exit_code": code}
    assert "a library prints this" in outcome.err


def test_error_without_json_leaves_standard_output_empty(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, HybridgeError("two\nlines"))
    outcome = hybridge(capfd, "inspect", "x")
    assert outcome.code == 2 and not outcome.out and outcome.error == "two lines"


def test_bug_prints_its_traceback(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    outcome = hybridge(capfd, "inspect", "x", "--json")
    assert outcome.code == 3 and "Traceback" in outcome.err
    assert "ZeroDivisionError" in outcome.document["error"]
