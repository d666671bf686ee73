"""Measured cost of draft tokens: how much longer steps take with them than without."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

# Assumed cost of one and of four draft tokens per row, used before anything is measured. Each always counts as half a
# step, so that the slope is defined even if all steps have the same number of draft tokens.
_PRIOR_POINTS, _PRIOR_WEIGHT = ((1.0, 0.1), (4.0, 0.4)), 0.5
# Steps of each kind to remember. Their median counts: other work on the machine may delay a few of them, and where it
# delays most, that is what a step takes.
_STEPS = 16
# Of a kind with draft tokens, the fewest steps that count (one alone may have been delayed, and where drafting does not
# seem to pay, the next one comes late), and so many that their time bounds that of kinds with fewer.
_FEWEST, _MANY = 3, 8


class StepCost:
    """Time of a step with draft tokens relative to one without: a linear function of the draft tokens per row.

    Fitted by least squares to steps that only decode. A kind of step is its number of rows and of draft tokens; the
    first step of each kind is skipped, because it may compile or record something. Steps of 1, 2, 3 to 4, 5 to 8, ...
    rows are fitted separately: the cost of a draft token grows with the rows for a small model, but hardly for one
    that is limited by reading its weights.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Times] = {}
        self._begun: set[tuple[int, int]] = set()
        self._lines: dict[int, _Line] = {}

    def knows(self, rows: int) -> bool:
        """Whether a step of ``rows`` rows without draft tokens has been measured."""
        return rows in self._plain

    def relative_time(self, draft_tokens: float, rows: int = 1) -> float:
        """Relative time of a step of ``rows`` rows with this many draft tokens per row; 1.0 without any."""
        return self._line(rows).relative_time(draft_tokens) if draft_tokens else 1.0

    def observe(self, rows: int, draft_tokens: int, seconds: float) -> None:
        """Record a decode step of ``rows`` rows, with ``draft_tokens`` draft tokens in total, that took ``seconds``."""
        if (rows, draft_tokens) not in self._begun:
            self._begun.add((rows, draft_tokens))
        elif not draft_tokens:
            plain = self._plain.setdefault(rows, _Times())
            if plain.add(seconds):
                self._line(rows).set_plain(rows, plain.median)
        elif rows in self._plain:
            # One draft token among many rows does not count as none.
            self._line(rows).observe(rows, round(draft_tokens / rows, 1) or draft_tokens / rows, seconds)

    def _line(self, rows: int) -> _Line:
        about = (rows - 1).bit_length()
        if about not in self._lines:
            self._lines[about] = _Line()
        return self._lines[about]


class _Times:
    """Seconds of the latest steps of one kind, and their median, of an even number the upper one."""

    def __init__(self) -> None:
        self._latest = deque[float](maxlen=_STEPS)
        self.median = 0.0

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float) -> bool:
        """Whether the median changes with a step that took ``seconds``."""
        self._latest.append(seconds)
        before, self.median = self.median, sorted(self._latest)[len(self._latest) // 2]
        return self.median != before


class _Point(NamedTuple):
    """Draft tokens per row, the number of steps that had as many, and their time beyond that of one without."""

    draft_tokens: float
    steps: int
    extra: float


class _Line:
    """Relative time of steps with similar numbers of rows, by draft tokens per row."""

    def __init__(self) -> None:
        # Seconds without draft tokens by rows, and of steps with them by rows and draft tokens per row.
        self._plain: dict[int, float] = {}
        self._times: dict[tuple[int, float], _Times] = {}
        self._fixed, self._slope = _fitted([])
        self._is_fitted = True

    def relative_time(self, draft_tokens: float) -> float:
        if not self._is_fitted:
            self._fixed, self._slope = _fitted(_bounded(self._points()))
            self._is_fitted = True
        return 1.0 + self._fixed + self._slope * draft_tokens

    def set_plain(self, rows: int, seconds: float) -> None:
        """Record how long a step of ``rows`` rows without draft tokens takes."""
        self._plain[rows], self._is_fitted = seconds, False

    def observe(self, rows: int, draft_tokens: float, seconds: float) -> None:
        """Record a step of ``rows`` rows with ``draft_tokens`` per row that took ``seconds``."""
        times = self._times.setdefault((rows, draft_tokens), _Times())
        if times.add(seconds) or len(times) < _STEPS:
            self._is_fitted = False

    def _points(self) -> list[_Point]:
        return [
            _Point(draft_tokens, len(times), times.median / plain - 1.0)
            for (rows, draft_tokens), times in self._times.items()
            if len(times) >= _FEWEST and (plain := self._plain.get(rows, 0.0)) > 0
        ]


def _bounded(points: list[_Point]) -> list[_Point]:
    """``points``, of which those of fewer steps exceed no time that follows from one of many.

    More draft tokens take no less time than fewer, and at most in proportion more.
    """
    least: dict[float, float] = {}
    for point in points:
        if point.steps >= _MANY:
            least[point.draft_tokens] = min(point.extra, least.get(point.draft_tokens, math.inf))
    # Once for each number of draft tokens: numbers of rows have many of them in common.
    bounds = {each: _bound(each, least) for each in {point.draft_tokens for point in points if point.steps < _MANY}}
    return [
        point if point.steps >= _MANY else point._replace(extra=min(point.extra, bounds[point.draft_tokens]))
        for point in points
    ]


def _bound(draft_tokens: float, least: Mapping[float, float]) -> float:
    """The most extra time of so many draft tokens, from the ``least`` of others; from fewer that seem to take none, no
    more follows."""
    bounds = (
        extra if draft_tokens <= known else extra * draft_tokens / known
        for known, extra in least.items()
        if draft_tokens <= known or extra > 0
    )
    return min(bounds, default=math.inf)


def _fitted(points: list[_Point]) -> tuple[float, float]:
    """Intercept and slope, both at least 0."""
    weight = first = second = extra = product = 0.0
    prior = ((draft_tokens, _PRIOR_WEIGHT, value) for draft_tokens, value in _PRIOR_POINTS)
    for draft_tokens, share, value in (*prior, *points):
        weight, first, second = weight + share, first + share * draft_tokens, second + share * draft_tokens**2
        extra, product = extra + share * value, product + share * draft_tokens * value
    slope = max(0.0, (weight * product - first * extra) / (weight * second - first * first))
    return max(0.0, (extra - slope * first) / weight), slope
