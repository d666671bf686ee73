"""Ctrl-C, a kill or a closed terminal end a command the same way: by an exception, so that it cleans up."""

from __future__ import annotations

import signal
import time
from types import FrameType

# Repeated signals are ignored for this many seconds, so that a second Ctrl-C does not interrupt the cleanup.
PATIENCE_SECONDS = 3.0
# During an import, or while torch computes with fake tensors, a signal is deferred by this many seconds: compiled code
# crashes when an exception ends it half way.
_DEFERRED_SECONDS = 0.05
_DEFERRING_FILES = ("<frozen importlib._bootstrap>", "torch/_subclasses/fake_tensor.py")
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class InterruptionHandler:
    """Raises KeyboardInterrupt in the main thread at the first signal, and again at signals that come much later."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._number = signal.SIGINT

    @property
    def interrupted(self) -> bool:
        """True once a signal has arrived."""
        return self._last is not None

    @property
    def exit_code(self) -> int:
        """The exit code that shells report for a program ended by the signal: 128 plus its number."""
        return 128 + self._number

    def install(self) -> None:
        """Handle the signals, except those that the parent process ignores."""
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._interrupt)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last > PATIENCE_SECONDS:
            self._last, self._number = now, signal.Signals(number)
            self._interrupt(number, frame)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, at once or after the import or fake tensor that is running."""
        if hasattr(signal, "setitimer") and _defers(frame):
            signal.setitimer(signal.ITIMER_REAL, _DEFERRED_SECONDS)
            return
        raise KeyboardInterrupt


def _defers(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs for an import or inside of a fake tensor."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_DEFERRING_FILES):
            return True
        frame = frame.f_back
    return False
