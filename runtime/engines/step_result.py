"""Results of a paged engine's step: the chosen tokens, and logits of rows on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling import DrawError, SampledToken, TokenSampling, best_token, best_tokens, sample_rows
from hybridge.runtime.sampling.token_sampling import no_token_left


class StepResult(ABC):
    """The result of one step, which may still be computing; valid until the engine's next step.

    All methods wait for the step and raise the EngineError that it ended with.
    """

    @property
    def is_ready(self) -> bool:
        """Whether the step has finished."""
        return True

    @abstractmethod
    def best_tokens(self) -> list[int | None]:
        """The most likely token after each of the step's logits_indices; None where its logits are not finite."""

    def fed_tokens(self) -> list[int]:
        """The token after each of logits_indices that ``PagedEngine.launch_next`` feeds; -1 where there is none."""
        raise AssertionError("a step that no other one follows was asked what it feeds")

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        """The token of each of ``samplings``, by index in logits_indices, or that row's error.

        ``samplings``: some of those that the step was given, by ascending index. This samples on the host; engines that
        sample in the step return the same tokens.
        """
        if not samplings:
            return {}
        return dict(zip(samplings, sample_rows(list(samplings.values()), self.rows(list(samplings))), strict=True))

    @abstractmethod
    def logits(self, index: int) -> np.ndarray:
        """Logits [vocab] float32 of logits_indices[index]."""

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        """Logits [n, vocab] float32 of the n >= 1 logits_indices of ``indices``, which ascend, read at once."""
        return np.stack([self.logits(index) for index in indices])


class ArrayResult(StepResult):
    """Logits [m, vocab] float32 that are in host memory already."""

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits

    def best_tokens(self) -> list[int | None]:
        return best_tokens(self._logits)

    def logits(self, index: int) -> np.ndarray:
        row: np.ndarray = self._logits[index]
        return row

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        every = len(indices) == len(self._logits)
        return self._logits if every else self._logits[list(indices)]


class RowsResult(StepResult):
    """Logits [vocab] float32 of each row, each a separate array in host memory."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self._rows = rows

    def best_tokens(self) -> list[int | None]:
        rows = self._rows
        return [best_token(rows[0])] if len(rows) == 1 else [best_token(row) for row in rows]

    def logits(self, index: int) -> np.ndarray:
        return self._rows[index]

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        if len(indices) == 1:
            return self._rows[indices[0]][None]
        return np.stack([self._rows[index] for index in indices])


class OrderedResult(StepResult):
    """``result`` in another order: index i is index ``order``[i] there."""

    def __init__(self, result: StepResult, order: Sequence[int]) -> None:
        self._result, self._order = result, order

    @property
    def is_ready(self) -> bool:
        return self._result.is_ready

    def best_tokens(self) -> list[int | None]:
        found = self._result.best_tokens()
        return [found[index] for index in self._order]

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        own = {self._order[index]: how for index, how in samplings.items()}
        found = self._result.sampled({index: own[index] for index in sorted(own)})
        return {index: found[self._order[index]] for index in samplings}

    def logits(self, index: int) -> np.ndarray:
        return self._result.logits(self._order[index])


def lost_token(how: TokenSampling) -> DrawError:
    """The error of a row without a token that was chosen by ``how``, whose logits have been overwritten."""
    allowed = None if how.edits is None else how.edits.allowed
    return lost_logits() if allowed is None or allowed.any() else no_token_left(-np.inf)


def lost_logits() -> EngineError:
    """The error of a row without a token, whose logits a step launched ahead has overwritten."""
    return EngineError("expected finite logits, found others: verify the artifact, or use a wider type")
