"""Progress of long steps: one stage at a time, with an optional total."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a long step; the command line draws it, tests may record it."""

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Begin ``stage`` (the one before it is over); ``total`` counts ``unit`` (such as "B" for bytes)."""

    def advance(self, amount: int = 1) -> None:
        """``amount`` more units of the present stage are done."""

    def finish(self) -> None:
        """All stages are over."""


class NoProgress:
    """Discards progress."""

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Ignore the stage."""

    def advance(self, amount: int = 1) -> None:
        """Ignore the amount."""

    def finish(self) -> None:
        """Nothing to end."""
