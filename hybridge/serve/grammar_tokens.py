"""The tokens that a grammar allows next, for all answers of a step together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hybridge.runtime.sandbox.grammar import grammar_error

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# Threads that compute masks; more would slow down the engine.
_THREADS = max(1, min(4, os.cpu_count() or 1))
# Answers whose masks are computed at a time, so that those that are ready are used while others are computed.
_PART = 16


class MaskBatch:
    """Follows the tokens of all answers of a step and computes their masks: in another thread from ``begin`` on, or
    else when the first mask is requested.

    llguidance then works on them in several threads, without the GIL. All calls come from one thread.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._waiting: list[GrammarTokens] = []
        self._thread: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the thread; answers get their masks without it from then on."""
        if self._thread is not None:
            self._thread.shutdown()

    def add(self, tokens: GrammarTokens) -> None:
        """``tokens`` need a mask; at most once until it has begun to be computed."""
        self._waiting.append(tokens)

    def begin(self) -> None:
        """Begin to compute the mask of each answer that needs one."""
        if not self._waiting:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridge-masks")
        with suppress(RuntimeError):  # closed
            while self._waiting:
                part = self._waiting[:_PART]
                job = self._thread.submit(self._compute, part)
                for each in part:
                    each.job = job
                del self._waiting[:_PART]

    def compute(self) -> None:
        """Compute the mask of each answer that needs one."""
        waiting, self._waiting = self._waiting, []
        self._compute(waiting)

    def _compute(self, waiting: Sequence[GrammarTokens]) -> None:
        from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

        for each in waiting:
            each.follow()
        masks = np.empty((len(waiting), self._words), np.int32)
        if len(waiting) == 1:
            fill_next_token_bitmask(waiting[0].matcher, masks, 0)
        else:
            rows = [(each.matcher, row) for row, each in enumerate(waiting)]
            fill_next_token_bitmask_par(self._executor, rows, masks)
        for each, mask in zip(waiting, masks.view(np.uint32), strict=True):
            each.computed = mask

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(_THREADS)


class GrammarTokens:
    """``AllowedTokens`` of one answer.

    ``computed``: the mask after the last token, None until it is needed. ``job``: computes it in another thread;
    ``matcher`` is not used until it has ended. ``accept`` only stores a token, which the job gives to the matcher.
    """

    def __init__(self, matcher: LLMatcher, stops: frozenset[int], batch: MaskBatch) -> None:
        """``stops``: tokens that end the answer."""
        self.matcher, self._stops, self._batch = matcher, stops, batch
        self.computed: np.ndarray | None = None
        self.job: Future[None] | None = None
        # Accepted, but not given to the matcher yet.
        self._tokens: list[int] = []
        batch.add(self)

    def mask(self) -> np.ndarray:
        """RequestError when the grammar needs more work than a step may have."""
        self._finish_job()
        if self.computed is None:
            self._batch.compute()
        assert self.computed is not None
        if self.matcher.is_error():
            raise grammar_error(self.matcher.get_error())
        return self.computed

    def prepare(self) -> None:
        """As ``AllowedTokens`` says."""
        self._batch.begin()

    def fork(self) -> GrammarTokens:
        """As ``AllowedTokens`` says."""
        self._finish_job()
        self.follow()
        found = copy(self)
        found.matcher, found._tokens = self.matcher.deep_copy(), []
        if found.computed is None:
            self._batch.add(found)
        return found

    def accept(self, token: int) -> None:
        """A token that the grammar does not allow is refused by the next ``mask``."""
        if self.job is not None:
            self._finish_job()
        self._tokens.append(token)
        if self.computed is not None:  # otherwise it is already waiting for its mask
            self.computed = None
            self._batch.add(self)

    def follow(self) -> None:
        """Give the accepted tokens to the matcher."""
        matcher = self.matcher
        for token in self._tokens:
            if not (token in self._stops and (matcher.is_accepting() or matcher.is_stopped())):
                matcher.consume_token(token)  # or it keeps an error
        self._tokens.clear()

    def _finish_job(self) -> None:
        if self.job is not None:
            job, self.job = self.job, None
            job.result()
