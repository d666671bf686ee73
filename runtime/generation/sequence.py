"""One request while it is being generated."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from runtime.generation.request import Request
from runtime.generation.results import LENGTH, STOP, Generation, Piece, Timings
from runtime.sampling import Guess, Sampler, TokenLogprobs
from runtime.text import StopStrings, Tokenizer


class Sequence:
    """Takes the logits after its last token, chooses the next one and decides whether it was the last.

    ``index`` is the prompt's place in the call and ``started`` the time (time.perf_counter) of that call.
    """

    def __init__(
        self, index: int, request: Request, eos: Iterable[int], tokenizer: Tokenizer | None, started: float
    ) -> None:
        params = request.params
        self.index = index
        self.prompt_ids = request.prompt_ids
        self.cached_tokens = 0
        self.last_token = -1
        self.finished = False
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._texts: list[str] = []
        self._max_new_tokens = request.max_new_tokens
        self._stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))
        self._sampler, self._takes_best = Sampler(params, request.prompt_ids), params.plain_greedy
        self._stops = StopStrings(params.stop)
        self._detokenizer = (
            None if tokenizer is None else tokenizer.detokenizer(request.prompt_ids, params.skip_special_tokens)
        )
        self._started = started
        self._first_token_at = 0.0

    def accept(self, logits: np.ndarray, best: int | None = None, guess: Guess | None = None) -> Piece:
        """Choose the next token from ``logits`` [vocab]; the piece that it makes.

        ``best``, ``guess``: see ``Sampler.sample``.
        """
        if self._takes_best and best is not None:
            token, logprobs = best, None
        else:
            token, logprobs = self._sampler.sample(logits, best, guess)
        if self.last_token < 0:
            self._first_token_at = time.perf_counter()
        self.last_token = token
        self._token_ids.append(token)
        if logprobs is not None and self._logprobs is not None:
            self._logprobs.append(logprobs)
        stopped_by: int | str | None = token if token in self._stop_ids else None
        text = ""
        if stopped_by is None and self._detokenizer is not None:
            text = self._stops.push(self._detokenizer.push(token))
            stopped_by = self._stops.found
        if stopped_by is not None or len(self._token_ids) >= self._max_new_tokens:
            return self._finish(token, text, stopped_by, logprobs)
        if text:
            self._texts.append(text)
        pair = None if logprobs is None else (logprobs,)
        # Of all steps of all requests: a named tuple's own constructor takes twice as long as this.
        return tuple.__new__(Piece, (self.index, text, (token,), pair, None, None, 0))

    def _finish(self, token: int, text: str, stopped_by: int | str | None, logprobs: TokenLogprobs | None) -> Piece:
        if self._detokenizer is not None and self._stops.found is None:
            text += self._stops.push(self._detokenizer.flush())
            text += self._stops.flush()
            stopped_by = stopped_by if self._stops.found is None else self._stops.found
        self._texts.append(text)
        self.finished = True
        generation = Generation(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            prompt_token_ids=self.prompt_ids,
            finish_reason=LENGTH if stopped_by is None else STOP,
            stopped_by=stopped_by,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            cached_tokens=self.cached_tokens,
            timings=Timings(
                first_token=self._first_token_at - self._started,
                last_token=time.perf_counter() - self._started,
                new_tokens=len(self._token_ids),
            ),
        )
        pair = None if logprobs is None else (logprobs,)
        return Piece(self.index, text, (token,), pair, generation.finish_reason, generation)
