"""A step's results on the device, read once it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.tensorrt.paged.step_arrays import ShapedArrays
from hybridge.runtime.engines.tensorrt.paged.step_logits import StepLogits
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampler
from hybridge.runtime.sampling import SampledToken, TokenSampling, best_tokens


@dataclass(frozen=True, eq=False)
class StepOutput:
    """arrays: the step's inputs. rows [m]: the row of logits of each of logits_indices. sampler: of the step, or None:
    the host chooses tokens."""

    arrays: ShapedArrays
    rows: np.ndarray
    logits: StepLogits
    sampler: StepSampler | None

    @property
    def tokens(self) -> ChosenTokens | None:
        """The token of every row of logits on the device, which a next step can be fed; None where there is none."""
        return None if self.sampler is None else self.sampler.tokens

    def fed_tokens(self) -> list[int]:
        """As ``StepResult.fed_tokens``."""
        assert self.sampler is not None
        found = self.sampler.fed_tokens
        return [found[row] for row in self.rows.tolist()]

    def best_tokens(self) -> list[int | None]:
        """As ``StepResult.best_tokens``."""
        if self.sampler is None:
            return best_tokens(self.read(range(len(self.rows))))
        found: list[int] = self.sampler.best[self.rows].tolist()
        return [token if token >= 0 else None for token in found]

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken]:
        """The tokens by index of ``samplings``, without those that the host has to sample."""
        if self.sampler is None:
            return {}
        rows = {index: int(self.rows[index]) for index in samplings}
        found = self.sampler.sampled({rows[index]: how for index, how in samplings.items()})
        return {index: found[row] for index, row in rows.items() if row in found}

    def read(self, indices: Sequence[int]) -> np.ndarray:
        """The logits [n, vocab] of these logits_indices."""
        return self.logits.read(self.rows[list(indices)])
