"""Runs commands beside each other, each with its output in a file, until all have ended or their time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Command:
    """arguments: run in the root of the checkout. log: takes standard error, and standard output where ``out`` is None.

    out: a file that appears when the command has ended by itself, well or not, also because it was interrupted.
    environment: variables beside those of this process.
    """

    arguments: tuple[str, ...]
    log: Path
    out: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """code: the exit status; None where the command was stopped, or never started, because its time was over."""

    command: Command
    code: int | None
    seconds: float


def run_all(commands: Sequence[Command], limit: float, jobs: int = 1) -> list[Outcome]:
    """Outcomes in the order of ``commands``; ``jobs`` of them run at a time, for ``limit`` seconds in all.

    Processes beside each other share the processor's cores: torch would start a thread a core in each.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    end = time.monotonic() + limit
    waiting, running = deque(commands), list[_Process]()
    done: dict[int, Outcome] = {}
    try:
        while (waiting and time.monotonic() < end) or running:
            while waiting and len(running) < jobs and time.monotonic() < end:
                running.append(_Process(waiting.popleft(), threads))
            for process in list(running):
                if process.ended(end):
                    running.remove(process)
                    done[id(process.command)] = process.outcome()
            time.sleep(0.05)
    finally:
        for process in running:
            process.stop()
    return [done.get(id(command), Outcome(command, None, 0.0)) for command in commands]


class _Process:
    """One command that runs in a process group of its own."""

    def __init__(self, command: Command, threads: int) -> None:
        self.command = command
        self._started = time.monotonic()
        self._stopped = False
        self._log = command.log.open("wb")
        self._part = command.out.with_suffix(".part") if command.out is not None else None
        self._output = self._part.open("wb") if self._part is not None else None
        with _interrupts():
            self._process = subprocess.Popen(
                command.arguments,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=self._output or self._log,
                stderr=self._log,
                env={**os.environ, **command.environment, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )

    def ended(self, end: float) -> bool:
        """Whether the process has ended; stops it where ``end`` (of time.monotonic) has passed."""
        if self._process.poll() is None and time.monotonic() >= end:
            self.stop()
        return self._process.poll() is not None

    def stop(self) -> None:
        """Interrupt, so that pytest still writes its report, then kill."""
        self._stopped = self._process.poll() is None
        for number, seconds in ((signal.SIGINT, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                return

    def outcome(self) -> Outcome:
        self._log.close()
        if self._output is not None and self._part is not None and self.command.out is not None:
            self._output.close()
            # The exit status of one that a signal ended is negative.
            if self._process.returncode >= 0:
                self._part.replace(self.command.out)
        code = None if self._stopped else self._process.returncode
        return Outcome(self.command, code, time.monotonic() - self._started)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Processes that start in this block can be interrupted.

    Where a shell runs this one in the background, it ignores SIGINT, and what it starts would, too.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)
