"""Results of a generation, as a whole and piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hybridge.runtime.sampling import TokenLogprobs

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class Timings:
    """Wall-clock times of one request, in seconds from the call that made it.

    ``first_token`` includes ``queued``, the wait for a free row of the batch; ``last_token`` is when the generation
    ended.
    """

    first_token: float
    last_token: float
    new_tokens: int
    queued: float = 0.0

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens per second after the first one; None when there is only one."""
        elapsed = self.last_token - self.first_token
        return (self.new_tokens - 1) / elapsed if self.new_tokens > 1 and elapsed > 0 else None


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt.

    text              the answer, up to the stop string if there was one
    token_ids         all generated tokens, including the one that ended the generation
    prompt_token_ids  the prompt as the model saw it
    finish_reason     "stop" (EOS, a stop token or a stop string) or "length" (max_new_tokens or max_seq_len)
    stopped_by        the token id or the stop string that ended it, None for "length"
    logprobs          per token of token_ids, if requested
    prompt_logprobs   per token of prompt_token_ids, None for the first, if requested
    cached_tokens     prompt tokens that came from a cached prefix instead of being computed
    score             of a beam: its log-probability over its length to the power of length_penalty
    hidden            float32 [hidden]: the hidden state of the prompt, if requested (``AsyncLLM.embed``)
    alternatives      the other answers of a request for several, best first if they have scores
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: str
    stopped_by: int | str | None
    logprobs: tuple[TokenLogprobs, ...] | None
    cached_tokens: int
    timings: Timings
    score: float | None = None
    alternatives: tuple[Generation, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    hidden: np.ndarray | None = field(default=None, compare=False)


class Piece(NamedTuple):
    """One step of one generation of a stream.

    ``index`` is the prompt's index in the list of prompts. ``text`` is the text completed in this step; it may be
    empty while a character or a possible stop string is incomplete. The last piece of each prompt has a
    ``finish_reason`` and the whole ``generation``. ``choice`` numbers the answers to one
    prompt; each has its own last piece.
    """

    index: int  # type: ignore[assignment] # hides a method that a tuple has
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    generation: Generation | None = None
    choice: int = 0


def generations_of(pieces: Iterable[Piece], prompts: int) -> list[Generation]:
    """The answers to ``prompts`` prompts from all their pieces; further answers become ``alternatives``."""
    answers: list[dict[int, Generation]] = [{} for _ in range(prompts)]
    for piece in pieces:
        if piece.generation is not None:
            answers[piece.index][piece.choice] = piece.generation
    found = [[each[choice] for choice in sorted(each)] for each in answers]
    return [best if not others else replace(best, alternatives=tuple(others)) for best, *others in found]
