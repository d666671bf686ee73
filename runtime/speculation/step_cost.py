"""What candidates cost, measured: how much longer steps with them take than steps without."""

from __future__ import annotations

from collections import deque
from statistics import median

# Weight of a step in the next one with candidates: about the last 50 count.
_DECAY = 0.98
# What one and four candidates a row are taken to cost before anything is measured. Each counts as half a step, always:
# where all steps have the same number of candidates, the line's slope is that of the guess.
_GUESSES, _GUESS_WEIGHT = ((1.0, 0.1), (4.0, 0.4)), 0.5
# Steps without candidates whose median is their time; a share of longer steps than this is some other delay.
_PLAIN_STEPS, _MOST_EXTRA = 9, 4.0


class StepCost:
    """The time of a step with candidates over that of one without, a straight line in the candidates of a row.

    Fitted by least squares to steps that only decode, later ones counting more. Steps without candidates are told apart
    by their number of rows.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._sums = [0.0] * 5

    def knows(self, rows: int) -> bool:
        """Whether a step of so many rows has run without candidates."""
        return rows in self._plain

    def relative_time(self, candidates: int) -> float:
        """Of a step with so many candidates in each row; 1 is the time of one without."""
        if not candidates:
            return 1.0
        guesses = zip(*(_terms(count, extra) for count, extra in _GUESSES), strict=True)
        sums = zip(self._sums, guesses, strict=True)
        weight, first, second, extra, product = (value + _GUESS_WEIGHT * sum(guess) for value, guess in sums)
        slope = (weight * product - first * extra) / (weight * second - first * first)
        # More candidates are no faster, and none costs less than nothing.
        slope = max(0.0, slope)
        return 1.0 + max(0.0, (extra - slope * first) / weight) + slope * candidates

    def observe(self, rows: int, candidates: int, seconds: float) -> None:
        """A step of ``rows`` rows that decode and so many ``candidates`` in all of them took ``seconds``."""
        if not candidates:
            self._plain.setdefault(rows, deque(maxlen=_PLAIN_STEPS)).append(seconds)
        elif rows in self._plain:
            plain = median(self._plain[rows])
            if plain > 0:
                terms = _terms(candidates / rows, min(seconds / plain - 1.0, _MOST_EXTRA))
                self._sums = [_DECAY * value + term for value, term in zip(self._sums, terms, strict=True)]


def _terms(candidates: float, extra: float) -> tuple[float, ...]:
    """What a step adds to the sums: weight, candidates, their square, extra time, and its product with candidates."""
    return 1.0, candidates, candidates * candidates, extra, candidates * extra
