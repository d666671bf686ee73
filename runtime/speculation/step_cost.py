"""What candidates cost, measured: how much longer steps with them take than steps without."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

# What one and four candidates a row are taken to cost before anything is measured. Each counts as half a step, always:
# where all steps have the same number of candidates, the line's slope is that of the guess.
_GUESSES, _GUESS_WEIGHT = ((1.0, 0.1), (4.0, 0.4)), 0.5
# So many steps of a kind are remembered, and their median counts: a delay that has other reasons moves nothing.
_STEPS = 9


class StepCost:
    """The time of a step with candidates over that of one without, a straight line in the candidates of a row.

    Fitted by least squares to steps that only decode. Steps without candidates are told apart by their number of rows,
    those with candidates by the number of these; of each kind the first one, which may have to prepare something, does
    not count.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._extra: dict[float, deque[float]] = {}
        self._begun: set[tuple[int, int]] = set()
        self._line = self._fitted()

    def knows(self, rows: int) -> bool:
        """Whether the time of a step of so many rows without candidates is known."""
        return rows in self._plain

    def relative_time(self, candidates: int) -> float:
        """Of a step with so many candidates in each row; 1 is the time of one without."""
        fixed, slope = self._line
        return 1.0 + fixed + slope * candidates if candidates else 1.0

    def observe(self, rows: int, candidates: int, seconds: float) -> None:
        """A step of ``rows`` rows that decode and so many ``candidates`` in all of them took ``seconds``."""
        if (rows, candidates) not in self._begun:
            self._begun.add((rows, candidates))
        elif not candidates:
            self._plain.setdefault(rows, deque(maxlen=_STEPS)).append(seconds)
        elif rows in self._plain and (plain := median(self._plain[rows])) > 0:
            kind = round(candidates / rows, 1)
            self._extra.setdefault(kind, deque(maxlen=_STEPS)).append(seconds / plain - 1.0)
            self._line = self._fitted()

    def _fitted(self) -> tuple[float, float]:
        """Where the line begins, and its slope: more candidates are no faster, and none costs less than nothing."""
        weight = first = second = extra = product = 0.0
        for share, candidates, value in self._points():
            weight, first, second = weight + share, first + share * candidates, second + share * candidates**2
            extra, product = extra + share * value, product + share * candidates * value
        slope = max(0.0, (weight * product - first * extra) / (weight * second - first * first))
        return max(0.0, (extra - slope * first) / weight), slope

    def _points(self) -> Iterator[tuple[float, float, float]]:
        """Weight, candidates of a row, and how much longer a step with them takes."""
        for candidates, guess in _GUESSES:
            yield _GUESS_WEIGHT, candidates, guess
        for candidates, steps in self._extra.items():
            yield float(len(steps)), candidates, median(steps)
