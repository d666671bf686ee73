"""The result of a step that may still run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.step_result import StepResult, lost_logits, lost_token
from hybridge.runtime.engines.tensorrt.paged.step_output import StepOutput
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.sampling import DrawError, SampledToken, TokenSampling, best_tokens


class DeviceResult(StepResult):
    """The last part of a step, which is ``pending``, and the logits of the parts before it."""

    def __init__(
        self,
        pending: PendingStep[StepOutput],
        before: np.ndarray,
        last: np.ndarray,
        tokens: ChosenTokens | None = None,
        token_rows: Sequence[int] = (),
    ) -> None:
        """before [m, vocab]: logits of the whole step, those of its last part undefined; no row where there is one part
        only. last: indices of the last part's logits in the whole step. tokens: those that a next step can be fed;
        token_rows: which of them is that of each index.
        """
        self.tokens, self.token_rows, self.before, self.last = tokens, token_rows, before, last
        self._pending = pending
        self._index_in_last = {index: own for own, index in enumerate(last.tolist())}
        self._has_logits = True

    def is_of(self, pending: PendingStep[StepOutput]) -> bool:
        """Whether this is the result of that step."""
        return self._pending is pending

    def lose_logits(self) -> None:
        """Another step has been launched, which overwrites them."""
        self._has_logits = False

    @property
    def is_ready(self) -> bool:
        return self._pending.is_reached

    def all_logits(self) -> np.ndarray:
        """Logits [m, vocab] float32 of all logits_indices."""
        return self.rows(range(max(len(self.before), len(self.last))))

    def fed_tokens(self) -> list[int]:
        return self._pending.read().fed_tokens()

    def best_tokens(self) -> list[int | None]:
        of_last = self._pending.read().best_tokens()
        if not len(self.before):
            return of_last
        found = best_tokens(self.before)
        for index, token in zip(self.last.tolist(), of_last, strict=True):
            found[index] = token
        return found

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        own = {self._index_in_last[index]: index for index in samplings if index in self._index_in_last}
        chosen = self._pending.read().sampled({place: samplings[index] for place, index in own.items()})
        found: dict[int, SampledToken | DrawError] = {own[place]: token for place, token in chosen.items()}
        if not self._has_logits:
            return {index: found.get(index) or lost_token(how) for index, how in samplings.items()}
        # The host samples the other rows and reports errors.
        return {**found, **super().sampled({index: how for index, how in samplings.items() if index not in found})}

    def logits(self, index: int) -> np.ndarray:
        row: np.ndarray = self.rows([index])[0]
        return row

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        output = self._pending.read()
        if not self._has_logits:
            raise lost_logits()
        if not len(self.before):
            return output.read(indices)
        found: np.ndarray = self.before[list(indices)]
        last = [place for place, index in enumerate(indices) if index in self._index_in_last]
        found[last] = output.read([self._index_in_last[indices[place]] for place in last])
        return found
