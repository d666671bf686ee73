"""Ctrl-C, a kill or a closed terminal end a command the same way: by an exception, so that it cleans up."""

from __future__ import annotations

import signal
import time
from types import FrameType

# Repeated signals are held off for this many seconds, so that a second Ctrl-C does not interrupt the cleanup.
PATIENCE_SECONDS = 3.0
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last > PATIENCE_SECONDS:
            self._last, self._number = now, signal.Signals(number)
            raise KeyboardInterrupt
