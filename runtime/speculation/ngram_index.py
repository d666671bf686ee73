"""Where the last tokens of a sequence occurred before."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """Every run of ``shortest`` to ``longest`` tokens of one growing sequence, with the place that followed its latest
    occurrence. A token costs one entry for each length; a look-up costs at most as many.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(shortest, longest + 1)
        self._after: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in self._lengths)
        self._known = 0

    def propose(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """At most ``count`` tokens that followed the longest run that ``tokens`` end with, when it last occurred.

        ``tokens`` are those of the call before and more. Where the earlier occurrence reaches the end, what follows is
        taken from the proposal itself: a text that repeats itself is expected to continue that way.
        """
        self._learn(tokens)
        end = len(tokens)
        for length, after in zip(reversed(self._lengths), reversed(self._after), strict=True):
            place = after.get(tuple(tokens[end - length :])) if length < end else None
            if place is not None:
                found = list(tokens[place : place + count])
                while len(found) < count:
                    found.append(found[place + len(found) - end])
                return tuple(found)
        return ()

    def _learn(self, tokens: Sequence[int]) -> None:
        """Add the runs that a token follows: all but those at the very end."""
        for length, after in zip(self._lengths, self._after, strict=True):
            for place in range(max(self._known, length), len(tokens)):
                after[tuple(tokens[place - length : place])] = place
        self._known = len(tokens)
