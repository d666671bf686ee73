"""Log-probabilities of the model's own distribution: before penalty, temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling.params import SamplingParams


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural log-probability of the chosen token, and the most likely tokens as (token id, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(
        cls, token: int, logit: float, normaliser: float, top: Sequence[int], top_logits: Sequence[float]
    ) -> TokenLogprobs:
        """From logits and the ``normaliser``, the log of the sum of their exponentials; all differences are float64."""
        pairs = tuple((other, value - normaliser) for other, value in zip(top, top_logits, strict=True))
        return cls(token, logit - normaliser, pairs)


def token_logprobs(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of ``logits`` [vocab] at ``token``, with the ``count`` most likely tokens, most likely first.

    Tokens of equal probability are listed in the order of their ids.
    """
    peak = float(logits.max())
    normaliser = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    count = min(count, logits.size)
    best = np.array([], np.intp)
    if count:
        kth = np.partition(logits, logits.size - count)[logits.size - count]
        likely = np.flatnonzero(logits >= kth)
        best = likely[np.argsort(-logits[likely], kind="stable")][:count]
    return TokenLogprobs.of(token, float(logits[token]), normaliser, best.tolist(), logits[best].tolist())


class PromptLogprobs:
    """Log-probabilities of the tokens of a prompt, each given those before it, with the ``count`` most likely ones."""

    def __init__(self, prompt: Sequence[int], count: int) -> None:
        self._prompt, self._count = prompt, count
        # The first token follows nothing.
        self._found: list[TokenLogprobs | None] = [None]

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int]) -> PromptLogprobs | None:
        """For a request with ``params``; None where it does not ask for any."""
        return None if params.prompt_logprobs is None else cls(prompt, params.prompt_logprobs)

    def add(self, logits: np.ndarray) -> None:
        """Logits [n, vocab] after the next n tokens of the prompt; those after its last token count for nothing.

        EngineError when they hold NaN or no finite value.
        """
        for row in logits[: len(self._prompt) - len(self._found)]:
            if not np.isfinite(row.max()):
                raise EngineError(
                    f"expected finite logits, found {row.max()} in the prompt: verify the artifact, or use a wider type"
                )
            self._found.append(token_logprobs(row, self._prompt[len(self._found)], self._count))

    @property
    def result(self) -> tuple[TokenLogprobs | None, ...]:
        """One for each token of the prompt, None for the first."""
        return tuple(self._found)
