"""Find stop strings in streamed text, holding back what could be the start of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text goes in piece by piece and comes out as far as no stop string can begin in it.

    The outcome depends on the whole text only, not on how it was cut: the stop string that is complete first wins,
    and of several that end together the longest.
    """

    def __init__(self, stops: Sequence[str], shows_stop: bool = False) -> None:
        """``shows_stop``: the text ends with the stop string, else before it."""
        self._stops, self._shows_stop = tuple(stops), shows_stop
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, may_end: bool = True) -> str:
        """The text that is now safe to show. Once ``found`` is set, nothing more comes out.

        may_end: whether a stop string that is complete with ``text`` counts.
        """
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        # A stop string that lies in what was held back already was complete when it did not count.
        known, held = len(self._held), self._held + text
        matches = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if may_end and (at := held.find(stop, max(0, known - len(stop) + 1))) >= 0
        ]
        if matches:
            end, start, self.found = min(matches)
            self._held = ""
            return held[: end if self._shows_stop else start]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text that was held back, when the generation ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` with which a stop string begins."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
