"""One validated request: token ids within the model's limits and sampling parameters."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifact.errors import RequestError
from runtime.sampling import SamplingParams
from runtime.text import Tokenizer
from runtime.text.prompt_size import tokens_within

# Used where neither the call nor its sampling parameters say how much to generate.
DEFAULT_MAX_NEW_TOKENS = 256
Prompt = str | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class RequestLimits:
    """What bounds a request: the vocabulary and the tokens that a row can hold."""

    vocab_size: int
    max_seq_len: int


@dataclass(frozen=True)
class Request:
    """A prompt of at least one token, and how to continue it by at most ``max_new_tokens``.

    The last token generated is never fed back, so a prompt of exactly max_seq_len still gets one token.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int

    @classmethod
    def from_prompt(
        cls,
        prompt: Prompt,
        params: SamplingParams,
        limits: RequestLimits,
        tokenizer: Tokenizer | None,
        name: str = "prompt",
        add_special_tokens: bool = True,
    ) -> Request:
        """Check ``prompt`` (text or token ids) and tokenize it; RequestError, which calls it ``name``, if it is bad.

        An empty prompt becomes the BOS token where the tokenizer has one.
        """
        if params.stop and tokenizer is None:
            raise RequestError("stop: the artifact has no tokenizer.json: use stop_token_ids")
        if isinstance(prompt, str):
            if tokenizer is None:
                raise RequestError(f"{name}: the artifact has no tokenizer.json: pass token ids instead of text")
            ids = tuple(tokens_within(tokenizer, prompt, limits.max_seq_len, name, add_special_tokens))
        else:
            ids = _checked_ids(prompt, name, limits)
        if not ids:
            bos = None if tokenizer is None else tokenizer.bos_token_id
            if bos is None:
                raise RequestError(f"{name}: expected at least one token, found none, and there is no BOS token to use")
            ids = (bos,)
        if len(ids) > limits.max_seq_len:
            raise RequestError(
                f"{name}: expected at most {limits.max_seq_len} tokens (max_seq_len), found {len(ids)}: shorten it, or "
                "export with a larger --max-seq-len"
            )
        wanted = params.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        return cls(ids, params, min(wanted, limits.max_seq_len - len(ids) + 1))


def is_one_prompt(prompt: object) -> bool:
    """True for a text or a sequence of token ids, False for a sequence of prompts; RequestError for anything else."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray):
        return prompt.ndim == 1
    if not isinstance(prompt, (list, tuple)):
        raise RequestError(f"prompt: expected text, token ids or a list of them, found {type(prompt).__name__}")
    return bool(prompt) and not any(isinstance(item, (str, list, tuple, np.ndarray)) for item in prompt)


def _checked_ids(prompt: object, name: str, limits: RequestLimits) -> tuple[int, ...]:
    values = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    if not isinstance(values, (list, tuple)):
        raise RequestError(f"{name}: expected text or token ids, found {type(prompt).__name__}")
    ids = []
    for value in values:
        try:
            token = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            token = -1
        if not 0 <= token < limits.vocab_size:
            raise RequestError(f"{name}: expected token ids from 0 to {limits.vocab_size - 1}, found {value!r}")
        ids.append(token)
    return tuple(ids)
