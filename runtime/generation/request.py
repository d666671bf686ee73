"""One validated request: token ids within the model's limits and sampling parameters."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation.prompts import Prompt, check_length, checked_ids
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.prompt_size import tokens_within

# Used where neither the call nor its sampling parameters say how much to generate.
DEFAULT_MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a request: the vocabulary and the tokens of a row."""

    vocab_size: int
    max_seq_len: int


@dataclass(frozen=True)
class Request:
    """A prompt of at least one token, and how to continue it by at most ``max_new_tokens``.

    The last token generated is never fed back, so a prompt of exactly max_seq_len still gets one token.
    bad_words: token ids of the texts that params.bad_words forbids.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    bad_words: tuple[tuple[int, ...], ...] = ()

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

        An empty text becomes the BOS token where the tokenizer has one.
        """
        _check_params(params, limits, tokenizer)
        if isinstance(prompt, str):
            if tokenizer is None:
                raise RequestError(f"{name}: the artifact has no tokenizer.json: pass token ids instead of text")
            ids = tuple(tokens_within(tokenizer, prompt, limits.max_seq_len, name, add_special_tokens))
        else:
            ids = checked_ids(prompt, name, limits.vocab_size, limits.max_seq_len)
        if not ids:
            bos = None if tokenizer is None else tokenizer.bos_token_id
            if bos is None:
                raise RequestError(f"{name}: expected at least one token, found none, and there is no BOS token to use")
            ids = (bos,)
        check_length(len(ids), limits.max_seq_len, name)
        requested = params.max_new_tokens or max(DEFAULT_MAX_NEW_TOKENS, params.min_tokens)
        return cls(ids, params, min(requested, limits.max_seq_len - len(ids) + 1), _bad_words(params, tokenizer))


def _check_params(params: SamplingParams, limits: RequestLimits, tokenizer: Tokenizer | None) -> None:
    """RequestError for texts without a tokenizer, and tokens that the vocabulary does not have."""
    for name, texts in (("stop", params.stop), ("bad_words", params.bad_words)):
        if texts and tokenizer is None:
            instead = "stop_token_ids" if name == "stop" else "allowed_token_ids or logit_bias"
            raise RequestError(f"{name}: the artifact has no tokenizer.json: use {instead}")
    biased = list(dict(params.logit_bias))
    for name, ids in (("allowed_token_ids", params.allowed_token_ids or ()), ("logit_bias", biased)):
        if ids and max(ids) >= limits.vocab_size:
            raise RequestError(f"{name}: expected token ids from 0 to {limits.vocab_size - 1}, found {max(ids)}")


def _bad_words(params: SamplingParams, tokenizer: Tokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Token ids of each forbidden text: as it begins an answer, and as it follows other words."""
    if tokenizer is None:
        return ()
    found = []
    for word in params.bad_words:
        for text in (word.lstrip(), f" {word.lstrip()}"):
            found.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    return tuple(dict.fromkeys(ids for ids in found if ids))
