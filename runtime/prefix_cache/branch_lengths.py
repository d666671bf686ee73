"""Lengths of common prefixes: later prompts often branch where earlier ones did."""

from __future__ import annotations

from collections import Counter, deque

# Branch points to remember, how many of their lengths are expected again, and how often these must have occurred.
_LATEST, _OFTEN, _MOST = 32, 2, 2


class BranchLengths:
    """The latest lengths at which prompts branched before there was a state."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=_LATEST)
        self._expected: tuple[int, ...] = ()

    def add(self, length: int) -> None:
        """A prompt branched after ``length`` tokens."""
        self._latest.append(length)
        counts = Counter(self._latest).most_common(_MOST)
        self._expected = tuple(length for length, count in counts if count >= _OFTEN)

    def expected(self) -> tuple[int, ...]:
        """The lengths that came up more than once, the most frequent ones."""
        return self._expected
