"""What candidates cost, measured: how much longer steps with them take than steps without."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TypeVar

# What one and four candidates a row are taken to cost before anything is measured. Each counts as half a step, always:
# where all steps have the same number of candidates, the line's slope is that of the guess.
_GUESSES, _GUESS_WEIGHT = ((1.0, 0.1), (4.0, 0.4)), 0.5
# So many steps of a kind are remembered, and their median counts: a delay that has other reasons moves nothing.
_STEPS = 9
Kind = TypeVar("Kind", int, float)


class StepCost:
    """The time of a step with candidates over that of one without: a straight line in the candidates of a row.

    Fitted by least squares to steps that only decode. Steps without candidates are told apart by their number of rows,
    those with candidates by the number of these too; of each kind the first one, which may have to prepare something,
    does not count. Steps of 1, 2, 3 to 4, 5 to 8, ... rows have lines of their own: a small model takes longer for each
    token of them, and one whose weights take the time does not.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._plain_seconds: dict[int, float] = {}
        self._begun: set[tuple[int, int]] = set()
        self._lines: dict[int, _Line] = {}

    def knows(self, rows: int) -> bool:
        """Whether the time of a step of so many rows without candidates is known."""
        return rows in self._plain_seconds

    def relative_time(self, candidates: float, rows: int = 1) -> float:
        """Of a step of ``rows`` rows with so many candidates in each; 1 is the time of one without."""
        return self._line(rows).relative_time(candidates) if candidates else 1.0

    def observe(self, rows: int, candidates: int, seconds: float) -> None:
        """A step of ``rows`` rows that decode and so many ``candidates`` in all of them took ``seconds``."""
        if (rows, candidates) not in self._begun:
            self._begun.add((rows, candidates))
        elif not candidates:
            self._plain_seconds[rows] = _latest(self._plain, rows, seconds)[1]
        elif (plain := self._plain_seconds.get(rows, 0.0)) > 0:
            self._line(rows).observe(round(candidates / rows, 1), seconds / plain - 1.0)

    def _line(self, rows: int) -> _Line:
        about = (rows - 1).bit_length()
        if about not in self._lines:
            self._lines[about] = _Line()
        return self._lines[about]


class _Line:
    """How much longer steps of about as many rows take, by their candidates of a row."""

    def __init__(self) -> None:
        self._extra: dict[float, deque[float]] = {}
        # By candidates of a row: how many steps tell of them, and how much longer they take.
        self._points: dict[float, tuple[float, float]] = {}
        self._fixed, self._slope = self._fitted()

    def relative_time(self, candidates: float) -> float:
        return 1.0 + self._fixed + self._slope * candidates

    def observe(self, candidates: float, extra: float) -> None:
        """A step with so many took 1 + ``extra`` times as long as one without."""
        self._points[candidates] = _latest(self._extra, candidates, extra)
        self._fixed, self._slope = self._fitted()

    def _fitted(self) -> tuple[float, float]:
        """Where the line begins, and its slope: more candidates are no faster, and none costs less than nothing."""
        weight = first = second = extra = product = 0.0
        guesses = [(candidates, (_GUESS_WEIGHT, guess)) for candidates, guess in _GUESSES]
        for candidates, (share, value) in (*guesses, *self._points.items()):
            weight, first, second = weight + share, first + share * candidates, second + share * candidates**2
            extra, product = extra + share * value, product + share * candidates * value
        slope = max(0.0, (weight * product - first * extra) / (weight * second - first * first))
        return max(0.0, (extra - slope * first) / weight), slope


def _latest(steps: dict[Kind, deque[float]], kind: Kind, value: float) -> tuple[float, float]:
    """How many of the last ``steps`` of a kind are remembered with this one, and the median of their values."""
    known = steps.setdefault(kind, deque(maxlen=_STEPS))
    known.append(value)
    return float(len(known)), median(known)
