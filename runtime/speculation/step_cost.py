"""Measured cost of draft tokens: how much longer steps take with them than without."""

from __future__ import annotations

import math
from collections import deque
from typing import TypeVar

# Assumed cost of one and of four draft tokens per row, used before anything is measured. Each always counts as half a
# step, so that the slope is defined even if all steps have the same number of draft tokens.
_PRIOR_POINTS, _PRIOR_WEIGHT = ((1.0, 0.1), (4.0, 0.4)), 0.5
# Steps of each kind to remember; their lower quartile counts, as other work only ever delays a step.
_STEPS = 9
# Of a kind with draft tokens, the fewest steps that count: one alone may have been delayed, and where drafting does not
# seem to pay, the next one comes late.
_FEWEST = 3
# Steps that take so many times as long as steps with more draft tokens were delayed.
_DELAYED = 1.2
Kind = TypeVar("Kind", int, float)


class StepCost:
    """Time of a step with draft tokens relative to one without: a linear function of the draft tokens per row.

    Fitted by least squares to steps that only decode. A kind of step is its number of rows and of draft tokens; the
    first step of each kind is skipped, because it may compile or record something. Steps of 1, 2, 3 to 4, 5 to 8, ...
    rows are fitted separately: the cost of a draft token grows with the rows for a small model, but hardly for one
    that is limited by reading its weights.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._plain_seconds: dict[int, float] = {}
        self._begun: set[tuple[int, int]] = set()
        self._lines: dict[int, _Line] = {}

    def knows(self, rows: int) -> bool:
        """Whether a step of ``rows`` rows without draft tokens has been measured."""
        return rows in self._plain_seconds

    def relative_time(self, draft_tokens: float, rows: int = 1) -> float:
        """Relative time of a step of ``rows`` rows with this many draft tokens per row; 1.0 without any."""
        return self._line(rows).relative_time(draft_tokens) if draft_tokens else 1.0

    def observe(self, rows: int, draft_tokens: int, seconds: float) -> None:
        """Record a decode step of ``rows`` rows, with ``draft_tokens`` draft tokens in total, that took ``seconds``."""
        if (rows, draft_tokens) not in self._begun:
            self._begun.add((rows, draft_tokens))
        elif not draft_tokens:
            self._plain_seconds[rows] = _latest(self._plain, rows, seconds)[1]
        elif (plain := self._plain_seconds.get(rows, 0.0)) > 0:
            self._line(rows).observe(round(draft_tokens / rows, 1), seconds / plain - 1.0)

    def _line(self, rows: int) -> _Line:
        about = (rows - 1).bit_length()
        if about not in self._lines:
            self._lines[about] = _Line()
        return self._lines[about]


class _Line:
    """Extra time of steps with similar numbers of rows, by draft tokens per row."""

    def __init__(self) -> None:
        self._extra: dict[float, deque[float]] = {}
        # By draft tokens per row: number of measured steps and their extra time.
        self._points: dict[float, tuple[float, float]] = {}
        self._fixed, self._slope = self._fitted()

    def relative_time(self, draft_tokens: float) -> float:
        return 1.0 + self._fixed + self._slope * draft_tokens

    def observe(self, draft_tokens: float, extra: float) -> None:
        """Record a step that took 1 + ``extra`` times as long as one without draft tokens."""
        point = _latest(self._extra, draft_tokens, extra)
        if point[0] >= _FEWEST:
            self._points[draft_tokens] = point
            self._fixed, self._slope = self._fitted()

    def _fitted(self) -> tuple[float, float]:
        """Intercept and slope, both at least 0."""
        weight = first = second = extra = product = 0.0
        prior = [(draft_tokens, (_PRIOR_WEIGHT, value)) for draft_tokens, value in _PRIOR_POINTS]
        for draft_tokens, (share, value) in (*prior, *self._undelayed()):
            weight, first, second = weight + share, first + share * draft_tokens, second + share * draft_tokens**2
            extra, product = extra + share * value, product + share * draft_tokens * value
        slope = max(0.0, (weight * product - first * extra) / (weight * second - first * first))
        return max(0.0, (extra - slope * first) / weight), slope

    def _undelayed(self) -> list[tuple[float, tuple[float, float]]]:
        """The points; where steps with more draft tokens often took much less time, those with fewer count as these."""
        found, least = [], math.inf
        for draft_tokens, (share, extra) in sorted(self._points.items(), reverse=True):
            if share == _STEPS:
                least = min(least, extra)
            found.append((draft_tokens, (share, least if 1 + extra > _DELAYED * (1 + least) else extra)))
        return found


def _latest(steps: dict[Kind, deque[float]], kind: Kind, value: float) -> tuple[float, float]:
    """Add ``value`` to the latest ``steps`` of a kind; returns their number and lower quartile."""
    known = steps.setdefault(kind, deque(maxlen=_STEPS))
    known.append(value)
    return float(len(known)), sorted(known)[(len(known) - 1) // 4]
