"""Signals end a command with one sentence and the exit code of a shell, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridge.cli import interruption
from hybridge.cli.interruption import InterruptionHandler
from hybridge.cli.main import run_command
from hybridge.cli.terminal import Terminal
from tests.cli.command import ROOT


def default_signals() -> None:
    """Programs started in the background inherit an ignored SIGINT; a user's terminal gives the default."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((signal.SIGINT, signal.SIGINT), id="int"),
        pytest.param((signal.SIGTERM,), id="term", marks=pytest.mark.slow),
    ],
)
def test_export_leaves_nothing(checkpoint: Path, tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridge", "export", checkpoint, tmp_path / "out", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("trace the graph"):
            break
    for number in numbers:
        time.sleep(0.1)
        process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + numbers[0], err
    assert "error: interrupted" in err and "Traceback" not in err and '"error": "interrupted' in out
    assert not list(tmp_path.iterdir())


def test_an_answer_that_was_interrupted(
    artifact: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the third piece of text: the speed so far is shown, and partial output is not mentioned."""
    handler, pieces = InterruptionHandler(), []
    write = Terminal.write

    def interrupted(terminal: Terminal, text: str) -> None:
        write(terminal, text)
        pieces.append(text)
        if len(pieces) == 3:
            handler._handle(signal.SIGINT, None)

    monkeypatch.setattr(Terminal, "write", interrupted)
    arguments = ["run", str(artifact), "--prompt", "The captain stood upon the deck"]
    assert run_command(arguments, handler) == 130
    out, err = capfd.readouterr()
    assert out == "".join(pieces[:3]) + "\n"
    assert "[onnxruntime: 3 new tokens, first after" in err and "tokens/s, interrupted]" in err
    assert "error: interrupted: the answer is not complete" in err and "partial output" not in err


def test_an_error_that_a_signal_became(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy says so when Ctrl-C meets its import."""
    handler = InterruptionHandler()

    def imported(path: Path, **options: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            handler._handle(signal.SIGINT, None)
        raise ImportError("numpy._core.umath failed to import")

    monkeypatch.setattr("hybridge.api.inspect", imported)
    assert run_command(["inspect", "somewhere"], handler) == 130
    assert capfd.readouterr().err.startswith("error: interrupted")
    monkeypatch.setattr("hybridge.cli.main._report", lambda failure, as_json: None)
    assert run_command(["inspect", "somewhere"]) == 3


def test_second_signal_waits_for_the_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(interruption.time, "monotonic", lambda: now[0])
    handler = InterruptionHandler()
    with pytest.raises(KeyboardInterrupt):
        handler._handle(signal.SIGINT, None)
    now[0] += 1
    handler._handle(signal.SIGINT, None)
    now[0] += interruption.PATIENCE_SECONDS
    with pytest.raises(KeyboardInterrupt):
        handler._handle(signal.SIGINT, None)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the timers of Unix")
def test_an_import_ends_before_the_interruption(tmp_path: Path) -> None:
    """A compiled module that an exception ends half way may crash the process."""
    body = "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.2)\nprint('imported')\n"
    (tmp_path / "slow.py").write_text(body)
    program = (
        "import sys, time; from hybridge.cli.interruption import InterruptionHandler as H; H().install()\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import slow\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('interrupted')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, preexec_fn=default_signals
    )
    assert result.stdout.split() == ["imported", "interrupted"], result.stderr


def test_ignored_signals_stay_ignored() -> None:
    program = (
        "import signal; from hybridge.cli.interruption import InterruptionHandler as H;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); H().install();"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, callable(signal.getsignal(signal.SIGTERM)))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.split() == ["True", "True"], result.stderr
