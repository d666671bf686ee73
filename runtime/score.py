"""Log-probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation.prompts import prompts_of
from hybridge.runtime.generation.request import Request
from hybridge.runtime.generation.results import Generation
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.sampling import SamplingParams

# The most likely token besides the given one, to tell whether they are the same; the generated token is not used.
_PARAMS = SamplingParams(max_new_tokens=1, prompt_logprobs=1)


@dataclass(frozen=True)
class Score:
    """Natural log-probabilities of tokens, each given all tokens before it.

    token_ids  the tokens: of the continuation, or of the prompt without its first one, which follows nothing
    logprobs   of each of them
    is_greedy  whether each is the most likely one, so that greedy decoding gives these tokens
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def total(self) -> float:
        """The log-probability of all tokens together."""
        return sum(self.logprobs)


@dataclass(frozen=True)
class ScoreRequest:
    """``request`` computes the tokens; those from ``first`` on are scored."""

    request: Request
    first: int

    @classmethod
    def of(
        cls, text: ModelText, prompt: Any, continuation: Any, max_seq_len: int, name: str = "prompt"
    ) -> ScoreRequest:
        """RequestError, which calls the prompt ``name``, when prompt or continuation are bad or too long together.

        A text has the tokens that it has behind a prompt of text, or its own where both share a token.
        """
        before = text.request(prompt, _PARAMS, max_seq_len, name)
        if continuation is None:
            return cls(before, 1)
        ids, after, both = before.prompt_ids, f"continuation of {name}", f"{name} with its continuation"
        if not isinstance(continuation, str):
            whole = (*ids, *text.request(continuation, _PARAMS, max_seq_len, after).prompt_ids)
        elif not continuation:
            raise RequestError(f"{after}: expected at least one token, found none: leave it out to score the prompt")
        else:
            whole = text.tokens(prompt + continuation, max_seq_len, both, True) if isinstance(prompt, str) else ids
            if len(whole) <= len(ids) or whole[: len(ids)] != ids:
                whole = (*ids, *text.tokens(continuation, max_seq_len, after, False))
        return cls(text.request(whole, _PARAMS, max_seq_len, both), len(ids))

    def score(self, generation: Generation) -> Score:
        """From the generation of ``request``."""
        assert generation.prompt_logprobs is not None
        found = [each for each in generation.prompt_logprobs[self.first :] if each is not None]
        return Score(
            tuple(each.token_id for each in found),
            tuple(each.logprob for each in found),
            # Among equally likely tokens, the lowest id is the greedy one and the first of ``top``.
            all(each.top[0][0] == each.token_id for each in found),
        )


def score_requests(
    text: ModelText, prompt: Any, continuation: Any, max_seq_len: int
) -> tuple[bool, list[ScoreRequest]]:
    """Whether there is one prompt alone, and what scores each; errors as in ``LLM.score``."""
    single, prompts = prompts_of(prompt)
    continuations = [continuation] * len(prompts) if single or continuation is None else continuation
    if not isinstance(continuations, Sequence) or isinstance(continuations, str) or len(continuations) != len(prompts):
        raise RequestError(f"continuation: expected a list of {len(prompts)}, one for each prompt, found another")
    names = ["prompt"] if single else [f"prompt {index}" for index in range(len(prompts))]
    items = zip(prompts, continuations, names, strict=True)
    return single, [ScoreRequest.of(text, given, after, max_seq_len, name) for given, after, name in items]
