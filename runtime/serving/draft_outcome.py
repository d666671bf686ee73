"""Result of a step for a row with draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.step_result import StepResult

# Logits of a row that needs only its most likely token.
NO_LOGITS = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class DraftOutcome:
    """``first``: index in ``result`` and ``best`` of the logits after the row's own token; those after its draft
    tokens follow."""

    result: StepResult
    best: Sequence[int | None]
    first: int

    def after(self, place: int, takes_best: bool) -> tuple[np.ndarray, int | None]:
        """Logits [vocab] after ``place`` draft tokens, and the most likely token, None when they are not finite.

        The logits are empty where only that token is needed.
        """
        token = self.best[self.first + place]
        return (NO_LOGITS if takes_best and token is not None else self.result.logits(self.first + place)), token
