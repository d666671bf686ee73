"""What a step gave a row with candidate tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.step_result import StepResult

# The logits of a row whose most likely token is all that is asked for.
NO_LOGITS = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class CandidateOutcome:
    """``first``: index in ``result`` and ``best`` of what follows the row's own token; what follows each of its
    candidates comes after it."""

    result: StepResult
    best: Sequence[int | None]
    first: int

    def after(self, place: int, takes_best: bool) -> tuple[np.ndarray, int | None]:
        """Logits [vocab] after ``place`` candidates, and the most likely token, None when they are not finite.

        The logits are empty where that token is all that is asked for.
        """
        token = self.best[self.first + place]
        return (NO_LOGITS if takes_best and token is not None else self.result.logits(self.first + place)), token
