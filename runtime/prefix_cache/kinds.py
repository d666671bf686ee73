"""Why states are taken, and how often each reason was a good one."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Where a state comes from; PASSED: another took its place, further on."""

    BRANCH = 0
    PROMPT_END = 1
    SPREAD = 2
    GRID = 3
    CHUNK = 4
    DECODE = 5
    END = 6
    EXPECTED = 7
    PASSED = 8


# What is assumed before anything is known: how many were used, of how many.
_ASSUMED = {
    Kind.BRANCH: (1.0, 1.0),
    Kind.PROMPT_END: (0.5, 8.0),
    Kind.SPREAD: (1.0, 4.0),
    Kind.GRID: (1.0, 4.0),
    Kind.CHUNK: (0.25, 8.0),
    Kind.DECODE: (0.25, 8.0),
    Kind.END: (1.0, 2.0),
    Kind.EXPECTED: (1.0, 2.0),
    Kind.PASSED: (0.25, 8.0),
}


class Chances:
    """The share of the states of each kind that were resumed from at least once."""

    def __init__(self) -> None:
        self._used = [_ASSUMED[kind][0] for kind in Kind]
        self._taken = [_ASSUMED[kind][1] for kind in Kind]
        self._ordered = self.shares()

    def of(self, kind: Kind) -> float:
        """The share of this kind."""
        return self._used[kind] / self._taken[kind]

    def taken(self, kind: Kind) -> None:
        """Of a state it has turned out whether it is of use, or there was no room for it."""
        self._taken[kind] += 1

    def used(self, kind: Kind) -> None:
        """Such a state was resumed from for the first time."""
        self._used[kind] += 1

    def shares(self) -> list[float]:
        """The shares of all kinds."""
        return [self.of(kind) for kind in Kind]

    def changed(self) -> bool:
        """Whether a share is another than at the last time that this was so, by a half or more."""
        now = self.shares()
        if all(2 / 3 < a / b < 3 / 2 for a, b in zip(now, self._ordered, strict=True)):
            return False
        self._ordered = now
        return True
