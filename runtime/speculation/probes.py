"""Which steps try what is not expected to pay."""

from __future__ import annotations

import math

# Fewest and most steps from one try to the next, and how much all tries may add to the time of all steps, unless the
# most steps are too few for that.
FEWEST_STEPS, MOST_STEPS, MOST_LOSS = 16, 300, 0.01
_MOST_DOUBLED = 8


class Probes:
    """The less a try is expected to lose, the earlier it comes."""

    def __init__(self, evaluated: int = MOST_STEPS) -> None:
        """``evaluated``: steps until what is expected has to be said again, unless a try comes earlier. Each time that
        trying does not pay doubles them, up to ``_MOST_DOUBLED`` times as many."""
        self._evaluated = self._apart = evaluated
        # Steps to the next try, and to the next call of ``tries``, both included.
        self._left = self._next = 0

    def waits(self) -> bool:
        """Whether the next step does without, whatever it would be expected to lose; otherwise ``tries`` decides."""
        if self.waiting:
            self.skip(1)
            return True
        return False

    @property
    def waiting(self) -> int:
        """How many of the next steps ``waits`` is sure to keep from trying."""
        return max(0, self._next - 1)

    def skip(self, steps: int) -> None:
        """Count ``steps`` of those ``waiting`` as done."""
        self._left -= steps
        self._next -= steps

    def tries(self, loss: float) -> bool:
        """Whether the next step tries; loss: the time that this is expected to lose, in steps, negative if it pays."""
        if loss < 0:
            self._left, self._next, self._apart = 0, 0, self._evaluated
            return True
        due, steps = self._left == 1, min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(loss / MOST_LOSS)))
        self._left = min(self._left - 1, steps) if self._left > 1 else steps
        self._next, self._apart = min(self._left, self._apart), min(2 * self._apart, _MOST_DOUBLED * self._evaluated)
        return due
