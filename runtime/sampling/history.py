"""Tokens of one request so far, and the edits of its next logits that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling.allowed_tokens import (
    AllowedTokens,
    accept_token,
    allowed_tokens_of,
    checked_mask,
    forked,
    method_of,
)
from hybridge.runtime.sampling.edits import LogitEdits, mask_of, only_allowed
from hybridge.runtime.sampling.params import SamplingParams

# Shared by the edits of most answers, which have no such tokens.
_NO_IDS, _NO_COUNTS = np.zeros(0, np.int64), np.zeros(0, np.float32)


class AnswerHistory:
    """The tokens of an answer and of its prompt, as far as ``params`` ask for them.

    ``stop_ids`` are forbidden for the first min_tokens tokens; ``bad_words`` are the token ids of the texts.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Iterable[int] = (),
        stop_ids: Iterable[int] = (),
        bad_words: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self._params = params
        self.tokens: list[int] = []
        # Insertion-ordered set of token ids, needed where the penalty of repetition needs it.
        self._seen = dict.fromkeys(prompt) if params.repetition_penalty != 1 else None
        self._counts: dict[int, int] | None = {} if params.frequency_penalty or params.presence_penalty else None
        # Made with the first edits, which tell the vocabulary.
        self._allowed: np.ndarray | None = None
        # Made with the first edits too, so that its errors end only this request.
        self._changing: AllowedTokens | None = None
        self._biased, self._bias = _bias_arrays(params)
        self._stop_ids = list(stop_ids) if params.min_tokens else []
        self._never = [word[0] for word in bad_words if len(word) == 1]
        # Words of several tokens, by the token before their last one.
        self._words: dict[int, list[tuple[int, ...]]] = {}
        for word in bad_words:
            if len(word) > 1:
                self._words.setdefault(word[-2], []).append(word)
        others = self._biased.size or self._stop_ids or self._never or self._words
        # Whether the edits are masks of allowed tokens alone.
        self.only_allows = not others and self._seen is None and self._counts is None

    def add(self, token: int) -> None:
        """The token that was sampled; RequestError where ``params.allowed_tokens`` fails."""
        self.tokens.append(token)
        if self._seen is not None:
            self._seen[token] = None
        if self._counts is not None:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self._changing is not None:
            accept_token(self._changing, token)

    def preparation(self) -> Callable[[], object] | None:
        """What begins to compute the mask of the next token, each time that it is called; None where nothing does.

        What it raises is to be ignored: ``edits`` raises it too.
        """
        if self._changing is None and self._params.allowed_tokens is not None:
            with suppress(RequestError):
                self._changing = allowed_tokens_of(self._params.allowed_tokens)
        return method_of(self._changing, "prepare")

    def fork(self) -> AnswerHistory | None:
        """A copy that goes on by itself; None where ``params.allowed_tokens`` cannot be copied."""
        copied = copy(self)
        if self._params.allowed_tokens is not None:
            changing = None if self._changing is None else forked(self._changing)
            if changing is None:
                return None
            copied._changing = changing
        copied.tokens = list(self.tokens)
        copied._seen, copied._counts = copy(self._seen), copy(self._counts)
        return copied

    def edits(self, vocab: int) -> LogitEdits:
        """The edits of the logits [vocab] after these tokens; RequestError where ``params.allowed_tokens`` fails."""
        params, counts = self._params, self._counts or {}
        if self.only_allows:
            return only_allowed(self._mask(vocab))
        forbidden = dict.fromkeys(self._forbidden())
        return LogitEdits(
            allowed=self._mask(vocab),
            forbidden=_ids(token for token in forbidden if token < vocab),
            biased=self._biased,
            bias=self._bias,
            seen=_ids(self._seen or ()),
            repetition=params.repetition_penalty,
            answered=_ids(counts),
            counts=np.fromiter(counts.values(), np.float32, len(counts)) if counts else _NO_COUNTS,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )

    def coming_edits(self, vocab: int) -> LogitEdits | None:
        """``edits`` with a mask that is still being computed, until ``has_arrived``; None where that is not known."""
        coming = method_of(self._changing, "coming")
        if coming is None or not self.only_allows or self._params.allowed_token_ids is not None:
            return None
        try:
            mask = coming()
            is_mask = mask is not None and mask.shape == (-(-vocab // 32),) and mask.dtype == np.uint32
        except Exception:
            return None
        return only_allowed(mask) if is_mask else None

    def has_arrived(self, edits: LogitEdits) -> bool:
        """Wait for the mask of ``edits``, which ``coming_edits`` gave; False where computing it failed."""
        try:
            return self._changing is not None and self._changing.mask() is edits.allowed
        except Exception:
            return False  # ``edits`` raises it again

    def _mask(self, vocab: int) -> np.ndarray | None:
        if self._allowed is None and self._params.allowed_token_ids is not None:
            self._allowed = _shared_mask(self._params.allowed_token_ids, vocab)
        if self._params.allowed_tokens is None:
            return self._allowed
        if self._changing is None:
            self._changing = allowed_tokens_of(self._params.allowed_tokens)
        mask = checked_mask(self._changing, vocab)
        return mask if self._allowed is None else mask & self._allowed

    def _forbidden(self) -> list[int]:
        found = list(self._never)
        if len(self.tokens) < self._params.min_tokens:
            found += self._stop_ids
        if self._words and self.tokens:
            tokens = self.tokens
            for word in self._words.get(tokens[-1], ()):
                if len(word) - 1 <= len(tokens) and tuple(tokens[1 - len(word) :]) == word[:-1]:
                    found.append(word[-1])
        return found


@lru_cache(maxsize=4)
def _shared_mask(tokens: tuple[int, ...], vocab: int) -> np.ndarray:
    """All answers to one prompt begin in one step, with as many ids as the vocabulary has."""
    return mask_of(_ids(tokens), vocab)


def _ids(tokens: Iterable[int]) -> np.ndarray:
    found = list(tokens)
    return np.array(found, np.int64) if found else _NO_IDS


def _bias_arrays(params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    pairs = dict(params.logit_bias)
    return _ids(pairs), np.array(list(pairs.values()), np.float32)
