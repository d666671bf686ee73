"""The tokens that a grammar allows next, for all answers of a step together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property
from itertools import cycle
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from hybridge.runtime.sandbox.grammar import grammar_error

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# Threads that compute masks; more would slow down the engine. Lexers that a grammar gets for them: with as many as
# threads, some thread often waits for a lexer.
MOST_THREADS = max(1, min(12, os.cpu_count() or 1))
MOST_LEXERS = min(32, 3 * MOST_THREADS)

# Answers, the same by lexer, and matchers with their rows.
Arrangement = tuple[list["GrammarTokens"], list["GrammarTokens"], list[tuple["LLMatcher", int]]]


class MaskBatch:
    """Follows the tokens of all answers of a step and computes their masks: in another thread from ``begin`` on, or
    else when the first mask is requested.

    llguidance then works on them in several threads, without the GIL. All calls come from one thread.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._waiting: list[GrammarTokens] = []
        # The answers of the last step, by lexer too, and their matchers with their rows: mostly those of the next one.
        self._arranged: Arrangement = ([], [], [])
        self._thread: ThreadPoolExecutor | None = None
        # The last job that has been waited for: it serves many answers.
        self.finished: Future[None] | None = None

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
        started, waiting = Event(), self._waiting
        with suppress(RuntimeError):  # closed
            masks = np.empty((len(waiting), self._words), np.int32)
            job = self._thread.submit(self._compute, waiting, masks, started)
            self._waiting = []
            for each, mask in zip(waiting, masks.view(np.uint32), strict=True):
                each.job, each.in_job = job, mask
            # Let the job take the GIL now: otherwise it starts up to 5 ms later, when this thread next releases it.
            started.wait()

    def compute(self) -> None:
        """Compute the mask of each answer that needs one."""
        waiting, self._waiting = self._waiting, []
        self._compute(waiting, np.empty((len(waiting), self._words), np.int32))

    def _compute(self, waiting: list[GrammarTokens], masks: np.ndarray, started: Event | None = None) -> None:
        """Write ``masks`` [answers, words] int32. ``started`` is set when the rest needs no GIL, and after an error."""
        try:
            from llguidance.numpy import consume_token_par, fill_next_token_bitmask, fill_next_token_bitmask_par

            by_lexer, rows = self._arrangement(waiting)
            tokens = [(each.matcher, token) for each in by_lexer if (token := each.only_token()) >= 0]
            if tokens:
                consume_token_par(self._executor, tokens)  # one that is refused is an error of its matcher
            if len(tokens) < len(waiting):
                for each in waiting:
                    each.follow()
        finally:
            if started is not None:
                started.set()
        if len(rows) == 1:
            fill_next_token_bitmask(waiting[0].matcher, masks)
        else:
            fill_next_token_bitmask_par(self._executor, rows, masks)
        for each, mask in zip(waiting, masks.view(np.uint32), strict=True):
            each.computed = mask if each.in_job is None else each.in_job

    def _arrangement(self, waiting: list[GrammarTokens]) -> tuple[list[GrammarTokens], list[tuple[LLMatcher, int]]]:
        """``waiting`` by lexer, and their matchers, each with its row of the masks.

        Neighbours go to one thread: a lexer is used by one at a time.
        """
        before, by_lexer, rows = self._arranged
        if waiting != before:
            order = sorted(range(len(waiting)), key=[each.lexer for each in waiting].__getitem__)
            by_lexer, rows = [waiting[row] for row in order], [(waiting[row].matcher, row) for row in order]
            self._arranged = waiting, by_lexer, rows
        return by_lexer, rows

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(MOST_THREADS)


class GrammarTokens:
    """``AllowedTokens`` of one answer.

    ``computed``: the mask after the last token, None until it is needed. ``job``: computes it in another thread;
    ``matcher`` is not used until it has ended. ``accept`` only stores a token, which the job gives to the matcher.
    """

    def __init__(self, matcher: LLMatcher, stops: frozenset[int], batch: MaskBatch, lexer: int = 0) -> None:
        """``stops``: tokens that end the answer. lexer: which one ``matcher`` shares with others."""
        self.matcher, self._stops, self._batch, self.lexer = matcher, stops, batch, lexer
        self.computed: np.ndarray | None = None
        self.job: Future[None] | None = None
        # The mask that the job computes.
        self.in_job: np.ndarray | None = None
        # Accepted, but not given to the matcher yet.
        self._tokens: list[int] = []
        batch.add(self)

    def mask(self) -> np.ndarray:
        """RequestError when the grammar needs more work than a step may have."""
        if self.job is not None:
            self._finish_job()
        if self.computed is None:
            self._batch.compute()
        assert self.computed is not None
        if self.matcher.is_error():
            raise grammar_error(self.matcher.get_error())
        return self.computed

    @property
    def prepare(self) -> Callable[[], None]:
        """As ``AllowedTokens`` says; the same for all answers of a batch."""
        return self._batch.begin

    def coming(self) -> np.ndarray | None:
        """As ``AllowedTokens`` says."""
        return self.in_job if self.computed is None else self.computed

    def fork(self) -> GrammarTokens:
        """As ``AllowedTokens`` says."""
        self._finish_job()
        self.follow()
        found = copy(self)
        found.matcher, found._tokens, found.in_job = self.matcher.deep_copy(), [], None
        if found.computed is None:
            self._batch.add(found)
        return found

    def accept(self, token: int) -> None:
        """A token that the grammar does not allow is refused by the next ``mask``."""
        if self.job is not None:
            self._finish_job()
        self._tokens.append(token)
        if self.computed is not None:  # otherwise it is already waiting for its mask
            self.computed = self.in_job = None
            self._batch.add(self)

    def only_token(self) -> int:
        """Take the accepted token, which the matcher has to be given, if it is the only one and ends no answer; -1."""
        if len(self._tokens) != 1 or self._tokens[0] in self._stops:
            return -1
        return self._tokens.pop()

    def follow(self) -> None:
        """Give the accepted tokens to the matcher."""
        matcher = self.matcher
        for token in self._tokens:
            if not (token in self._stops and (matcher.is_accepting() or matcher.is_stopped())):
                matcher.consume_token(token)  # or it keeps an error
        self._tokens.clear()

    def _finish_job(self) -> None:
        """Wait for the job, if there is one; raises its error each time."""
        job = self.job
        if job is not None and job is not self._batch.finished:
            job.result()
            self._batch.finished = job
        self.job = None


class GrammarCopies:
    """One grammar, compiled several times.

    A copy of a matcher shares its lexer, which one thread at a time can use; each of ``matchers`` has its own.
    """

    def __init__(self, matchers: Sequence[LLMatcher]) -> None:
        self._lexers = cycle(matchers)

    def tokens(self, stops: frozenset[int], batch: MaskBatch) -> GrammarTokens:
        """Those of a new answer; arguments as of GrammarTokens. All calls come from one thread."""
        matcher = next(self._lexers)
        return GrammarTokens(matcher.deep_copy(), stops, batch, id(matcher))
