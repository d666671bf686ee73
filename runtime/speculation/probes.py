"""Which steps try what is not expected to pay."""

from __future__ import annotations

import math

# Fewest and most steps from one try to the next, and how much all tries may add to the time of all steps, unless the
# most steps are too few for that.
FEWEST_STEPS, MOST_STEPS, MOST_LOSS = 16, 300, 0.01


class Probes:
    """The less a try is expected to lose, the earlier it comes."""

    def __init__(self) -> None:
        self._left = 0

    def waits(self) -> bool:
        """Whether the next step does without, whatever it would be expected to lose; otherwise ``tries`` decides."""
        if self._left > 1:
            self._left -= 1
            return True
        return False

    @property
    def waiting(self) -> int:
        """How many of the next steps ``waits`` is sure to keep from trying."""
        return max(0, self._left - 1)

    def skip(self, steps: int) -> None:
        """Count ``steps`` of those ``waiting`` as done."""
        self._left -= steps

    def tries(self, loss: float) -> bool:
        """Whether the next step tries; loss: the time that this is expected to lose, in steps, negative if it pays."""
        due, self._left = self._left == 1, 0
        if loss >= 0:
            self._left = min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(loss / MOST_LOSS)))
        return due or loss < 0
