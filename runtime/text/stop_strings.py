"""Find stop strings in streamed text, holding back what could be the start of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class StopStrings:
    """Text goes in piece by piece and comes out as far as no stop string can begin in it.

    The outcome depends on the whole text only, not on how it was cut: the stop string that is complete first wins,
    and of several that end together the longest.
    """

    def __init__(self, stops: Sequence[str], shows_stop: bool = False) -> None:
        """``shows_stop``: the text ends with the stop string, else before it."""
        self._stops, self._shows_stop = tuple(stops), shows_stop
        self._pending = ""
        self.found: str | None = None

    def push(self, text: str, may_end: bool = True) -> str:
        """The text that is now safe to show. Once ``found`` is set, nothing more comes out.

        may_end: whether a stop string that is complete with ``text`` counts.
        """
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        # A stop string within the text held back was complete when it did not count.
        known, pending = len(self._pending), self._pending + text
        matches = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if may_end and (at := pending.find(stop, max(0, known - len(stop) + 1))) >= 0
        ]
        if matches:
            end, start, self.found = min(matches)
            self._pending = ""
            return pending[: end if self._shows_stop else start]
        keep = possible_start(pending, self._stops)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """The text that was held back, when the generation ends without a stop string."""
        pending, self._pending = self._pending, ""
        return pending


def possible_start(text: str, words: Collection[str]) -> int:
    """Length of the longest suffix of ``text`` that is the beginning, but not the whole, of one of ``words``."""
    for length in range(min(len(text), max(map(len, words), default=0) - 1), 0, -1):
        tail = text[-length:]
        if any(len(word) > length and word.startswith(tail) for word in words):
            return length
    return 0
