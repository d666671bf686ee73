"""One request while it is being generated."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from hybridge.runtime.generation.request import Request
from hybridge.runtime.generation.results import LENGTH, STOP, Generation, Piece, Timings
from hybridge.runtime.sampling import DraftToken, PromptLogprobs, SampledToken, Sampler, TokenLogprobs
from hybridge.runtime.text import StopStrings, Tokenizer

# Stop tokens of a sequence that ends with its next token, whatever that is; compared by identity.
ANY_TOKEN = frozenset([-1])


class GeneratedSequence:
    """Takes the logits after its last token, chooses the next one and decides whether it was the last.

    ``index`` is the prompt's place in the call, ``started`` the time (time.perf_counter) of that call, and ``choice``
    counts the answers to one prompt. ``prompt_logprobs`` is filled by the caller, where the request asks for it.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        eos: Iterable[int],
        tokenizer: Tokenizer | None,
        started: float,
        choice: int = 0,
        prompt_logprobs: PromptLogprobs | None = None,
    ) -> None:
        params = request.params
        self.index, self._choice = index, choice
        self.prompt_ids = request.prompt_ids
        self.cached_tokens = 0
        # time.perf_counter() at the start of its prefill.
        self.admitted_at = started
        self.hidden: np.ndarray | None = None
        self.last_token = -1
        self.finished = False
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._texts: list[str] = []
        self._max_new_tokens = request.max_new_tokens
        self._stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))
        self.sampler = Sampler(params, request.prompt_ids, self._stop_ids, request.bad_words, choice)
        self._takes_best = params.plain_greedy
        self._min_tokens, self._shows_stop = params.min_tokens, params.include_stop_str_in_output
        self._stops = StopStrings(params.stop, self._shows_stop)
        self._detokenizer = (
            None if tokenizer is None else tokenizer.detokenizer(request.prompt_ids, params.skip_special_tokens)
        )
        self._looks_for_text = bool(params.stop) and self._detokenizer is not None
        self._stopped_by: int | str | None = None
        # What is known of the prompt, which all answers to it share; None unless requested.
        self.prompt_logprobs = prompt_logprobs
        # Text, free of stop strings, that no piece has shown.
        self._text = ""
        self._started = started
        self._first_token_at = 0.0

    def accept(self, logits: np.ndarray, best: int | None = None, draft_token: DraftToken | None = None) -> Piece:
        """``choose``, then ``piece``."""
        self.choose(logits, best, draft_token)
        return self.piece()

    def choose(self, logits: np.ndarray, best: int | None = None, draft_token: DraftToken | None = None) -> None:
        """Choose the next token from ``logits`` [vocab], and whether it was the last; then call ``piece``, once, or
        in its place ``whole_piece`` after the last.

        ``best``, ``draft_token``: see ``Sampler.sample``. The text is looked at only where a stop string may be in it.
        """
        if self._takes_best and best is not None:
            self.take((best, None))
        else:
            self.take(self.sampler.sample(logits, best, draft_token))

    def take(self, sampled: SampledToken) -> None:
        """``choose``, where ``sampler`` has sampled the token already."""
        token, logprobs = sampled
        if logprobs is not None and self._logprobs is not None:
            self._logprobs.append(logprobs)
        if self.last_token < 0:
            self._first_token_at = time.perf_counter()
        self.last_token = token
        token_ids = self._token_ids
        token_ids.append(token)
        if token in self._stop_ids and len(token_ids) > self._min_tokens:
            self._stopped_by, self.finished = token, True
            if self._looks_for_text and self._shows_stop:
                self._text += self._pushed(token)
        elif self._looks_for_text:
            self._text += self._pushed(token)
            self._stopped_by = self._stops.found
            self.finished = self._stopped_by is not None
        if len(token_ids) >= self._max_new_tokens:
            self.finished = True

    def next_stops(self) -> frozenset[int] | None:
        """The tokens that end it if they come next, besides those that complete a stop string; ``ANY_TOKEN`` if every
        token does, None if that is not known."""
        count = len(self._token_ids) + 1
        if count >= self._max_new_tokens:
            return ANY_TOKEN
        return None if count <= self._min_tokens else self._stop_ids

    def piece(self) -> Piece:
        """The piece of the last chosen token."""
        token, text = self.last_token, ""
        logprobs = self._logprobs[-1] if self._logprobs else None
        if self._looks_for_text:
            text, self._text = self._text, ""
        elif self._detokenizer is not None and (self._stopped_by is None or self._shows_stop):
            text = self._detokenizer.push(token)
        pair = None if logprobs is None else (logprobs,)
        if self.finished:
            return self._finish((token,), text, pair)
        if text:
            self._texts.append(text)
        return Piece(self.index, text, (token,), pair, None, None, self._choice)

    def whole_piece(self) -> Piece:
        """The only piece of an answer that has ended."""
        tokens, text = tuple(self._token_ids), self._text
        if not self._looks_for_text and self._detokenizer is not None:
            shown = tokens if self._stopped_by is None or self._shows_stop else tokens[:-1]
            text = "".join([self._detokenizer.push(token) for token in shown])
        return self._finish(tokens, text, None if self._logprobs is None else tuple(self._logprobs))

    def _pushed(self, token: int) -> str:
        assert self._detokenizer is not None
        return self._stops.push(self._detokenizer.push(token), self._may_stop)

    @property
    def _may_stop(self) -> bool:
        return len(self._token_ids) > self._min_tokens

    def _finish(self, tokens: tuple[int, ...], text: str, logprobs: tuple[TokenLogprobs, ...] | None) -> Piece:
        """The last piece, of ``tokens``."""
        if self._detokenizer is not None and self._stops.found is None:
            text += self._stops.push(self._detokenizer.flush(), self._may_stop)
            text += self._stops.flush()
            self._stopped_by = self._stopped_by if self._stops.found is None else self._stops.found
        self._texts.append(text)
        generation = Generation(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            prompt_token_ids=self.prompt_ids,
            finish_reason=LENGTH if self._stopped_by is None else STOP,
            stopped_by=self._stopped_by,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            prompt_logprobs=None if self.prompt_logprobs is None else self.prompt_logprobs.result,
            cached_tokens=self.cached_tokens,
            hidden=self.hidden,
            timings=Timings(
                first_token=self._first_token_at - self._started,
                last_token=time.perf_counter() - self._started,
                new_tokens=len(self._token_ids),
                queued=self.admitted_at - self._started,
            ),
        )
        return Piece(self.index, text, tokens, logprobs, generation.finish_reason, generation, self._choice)
