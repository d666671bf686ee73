"""Times of a prompt and its answers, for traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridge.runtime.generation import Generation


@dataclass(frozen=True)
class PromptTrace:
    """Times of one prompt and its answers. began: ns since 1970; queued, first_token, last_token: seconds after it."""

    model: str
    began: int
    queued: float
    first_token: float
    last_token: float
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int

    @classmethod
    def of(cls, model: str, began: int, answers: Sequence[Generation]) -> PromptTrace:
        """The trace of finished ``answers`` to one prompt."""
        first, times = answers[0], answers[0].timings
        return cls(
            model,
            began,
            times.queued,
            times.first_token,
            max(answer.timings.last_token for answer in answers),
            len(first.prompt_token_ids),
            first.cached_tokens,
            sum(len(answer.token_ids) for answer in answers),
        )
