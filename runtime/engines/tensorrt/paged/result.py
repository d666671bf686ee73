"""The result of a step that may still run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.sampling import best_tokens


class DeviceResult(StepResult):
    """Logits on their way to the host."""

    def __init__(self, pending: PendingStep, chosen: Callable[[np.ndarray], np.ndarray]) -> None:
        """``chosen``: from the logits of the last part, those of the whole step in order."""
        self._pending, self._chosen = pending, chosen

    @property
    def is_ready(self) -> bool:
        return self._pending.is_reached

    def all_logits(self) -> np.ndarray:
        """Logits [m, vocab] float32 of all logits_indices, valid until the engine's next step."""
        return self._chosen(self._pending.logits())

    def best_tokens(self) -> list[int | None]:
        return best_tokens(self.all_logits())

    def logits(self, index: int) -> np.ndarray:
        row: np.ndarray = self.all_logits()[index]
        return row

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        found = self.all_logits()
        return found if len(indices) == len(found) else found[list(indices)]
