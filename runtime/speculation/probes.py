"""Which steps try what is not expected to pay."""

from __future__ import annotations

# Steps from one try to the next: at first, and at most after others that did not pay either.
FIRST_PROBE, MOST_APART = 16, 64


class Probes:
    """One step in ``FIRST_PROBE`` is tried, then fewer and fewer, until a step is expected to pay again."""

    def __init__(self) -> None:
        self._skipped, self._apart = 0, FIRST_PROBE

    def skips(self, pays: bool) -> bool:
        """Whether the next step skips drafting; ``pays``: drafting is expected to be worth its time."""
        if pays:
            self._skipped, self._apart = 0, FIRST_PROBE
            return False
        self._skipped += 1
        if self._skipped < self._apart:
            return True
        self._skipped, self._apart = 0, min(2 * self._apart, MOST_APART)
        return False
