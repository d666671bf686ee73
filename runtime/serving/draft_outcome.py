"""Result of a step for a row with draft tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import DrawError, SampledToken

# Logits of a row that needs only its most likely token.
NO_LOGITS = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class DraftOutcome:
    """``first``: index in ``result`` and ``best`` of the logits after the row's own token; those after its draft
    tokens follow. sampled: tokens sampled in the step, or errors, by index."""

    result: StepResult
    best: Sequence[int | None]
    first: int
    sampled: Mapping[int, SampledToken | DrawError]

    def sampled_after(self, place: int) -> SampledToken | None:
        """The token sampled after ``place`` draft tokens; None where it has to be sampled from logits."""
        found = self.sampled.get(self.first + place)
        return None if isinstance(found, Exception) else found

    def after(self, place: int, takes_best: bool) -> tuple[np.ndarray, int | None]:
        """Logits [vocab] after ``place`` draft tokens, and the most likely token, None when they are not finite.

        The logits are empty where only that token is needed.
        """
        token = self.best[self.first + place]
        return (NO_LOGITS if takes_best and token is not None else self.result.logits(self.first + place)), token
