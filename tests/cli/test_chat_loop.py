"""The chat loop on a terminal (a pseudo-terminal): turns, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import ROOT
from tests.cli.test_interruption import default_signals

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
SECONDS = 60


class Session:
    """``hybridge run`` on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hybridge", "run", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=self._take_terminal,
        )
        os.close(theirs)
        self.shown = ""

    @staticmethod
    def _take_terminal() -> None:
        import fcntl
        import termios

        default_signals()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def until(self, pattern: str) -> str:
        """What is shown up to the first match of ``pattern``."""
        deadline = time.monotonic() + SECONDS
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline and self._read(), self.shown
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def send(self, text: str) -> None:
        """Type ``text``."""
        os.write(self.end, text.encode())

    def interrupt(self, pattern: str) -> str:
        """Press Ctrl-C at the prompt until ``pattern`` is shown.

        readline does not see a signal that comes after it shows the prompt and before it waits for a key.
        """
        deadline = time.monotonic() + SECONDS
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, self.shown
            self.send("\x03")
            while self._read(1.0) and not re.search(pattern, self.shown):
                pass
            assert self.process.poll() is None, self.shown
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def leave(self, text: str) -> int:
        """Type ``text``, which ends the program; its exit code."""
        self.send(text)
        while self._read():
            pass
        os.close(self.end)
        return self.process.wait(SECONDS)

    def _read(self, seconds: float = SECONDS) -> bool:
        if not select.select([self.end], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.end, 4096)
        except OSError:  # the other end is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def test_a_conversation(artifact: Path) -> None:
    session = Session(artifact, "--max-new-tokens", "6", "--system", "Be brief.")
    assert "chat template; /help shows the commands" in session.until("> ")
    session.send("Hello there\n")
    assert "cached" not in session.until(r"6 new.*\]\s+> ")
    session.send("And then?\n")
    assert re.search(r"\(\d\d cached\), 6 new", session.until(r"6 new.*\]\s+> "))
    session.send("/help\n")
    assert "/reset" in session.until("> ")
    session.send("/nonsense\n")
    assert "error: expected /reset, /help or /exit, found /nonsense" in session.until("> ")
    session.send("/reset\n")
    assert "[new conversation]" in session.until("> ")
    session.send("sea " * 400 + "\n")
    assert "at most 300 tokens" in session.until(r"/reset starts a new conversation\s+> ")
    assert "Ctrl-D or /exit leaves" in session.interrupt("leaves]\\s+> ")
    assert session.leave("\x04") == 0


def test_ctrl_c_stops_an_answer_and_keeps_the_loop(artifact: Path) -> None:
    session = Session(artifact, "--max-new-tokens", "100000", "--repetition-penalty", "1.3", "--threads", "1")
    session.until("> ")
    session.send("Tell me everything\n")
    session.until(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+")
    session.until(r"\w+ \w+")
    session.send("\x03")
    session.until(r"(stopped|ended by \w+)\]\s+> ")
    session.send("/reset\n")
    assert "[new conversation]" in session.until("> ")
    assert session.leave("/exit\n") == 0
