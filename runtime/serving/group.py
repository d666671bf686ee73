"""All sequences of one request, and how they choose their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.generation import GeneratedSequence, Piece
from hybridge.runtime.sampling import DraftToken, PromptLogprobs, SampledToken, Sampler
from hybridge.runtime.scheduler import ScheduledSequence
from hybridge.runtime.serving.prompt_pooling import PromptPooling
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.speculation import Draw
from hybridge.runtime.text import Tokenizer

# Makes the piece of a chosen token; called once, before the next token is chosen.
MakePiece = Callable[[], Piece]


@dataclass(frozen=True)
class GroupContext:
    """The parts of the loop that its groups use.

    fork and finish are those of the scheduler; eos and tokenizer the model's; started is when the request came.
    """

    fork: Callable[[ScheduledSequence], ScheduledSequence]
    finish: Callable[[ScheduledSequence], None]
    eos: tuple[int, ...]
    tokenizer: Tokenizer | None
    started: float


class Group(ABC):
    """The sequences of one request.

    finished: whether the last of them has ended. takes_best: whether it needs only the most likely token of the
    logits.
    """

    finished = takes_best = False
    # Pools the prompt's hidden states, if the request asks for it.
    pooling: PromptPooling | None = None

    @property
    def max_draft_tokens(self) -> int | None:
        """Maximum number of draft tokens of a sequence in a step; None: no limit."""
        return 0

    def sampler(self, sequence: ScheduledSequence) -> Sampler | None:
        """The sampler for the tokens that ``take`` gets; None where ``accept`` chooses tokens from logits."""
        return None

    def draw(self, sequence: ScheduledSequence) -> Draw | None:
        """How to sample draft tokens for ``sequence``; None for the most likely ones."""
        sampler = self.sampler(sequence)
        return sampler.sample_draft_token if sampler is not None and sampler.is_random else None

    def next_stops(self, sequence: ScheduledSequence) -> frozenset[int] | None:
        """As ``GeneratedSequence.next_stops``."""
        return None

    def take(self, sequence: ScheduledSequence, sampled: SampledToken) -> list[MakePiece]:
        """Append the token sampled for ``sequence``; returns functions that make its output pieces."""
        raise AssertionError("a group without samplers was given a sampled token")

    def read_prompt(self, logits: np.ndarray) -> None:
        """Logits [n, vocab] after the next n tokens of the prompt, except its last; EngineError: not finite."""
        raise AssertionError("a group that asks for no logits of its prompt was given some")

    @abstractmethod
    def accept(
        self, sequence: ScheduledSequence, logits: np.ndarray, best: int | None, draft_token: DraftToken | None = None
    ) -> list[MakePiece]:
        """Choose a token by the ``logits`` [vocab] after the last token of ``sequence``; returns what makes its pieces.

        ``best``: the most likely token, None when the logits are not finite; then EngineError. Where the group
        ``takes_best`` and there is one, ``logits`` may be anything. ``draft_token``: see ``Sampler.sample``.
        """


class SamplingGroup(Group):
    """``n`` independent answers to one prompt, which is computed once."""

    def __init__(self, submitted: ServingRequest, root: ScheduledSequence, context: GroupContext) -> None:
        self._submitted, self._context = submitted, context
        self.takes_best = submitted.request.params.plain_greedy
        self._unforked = submitted.request.params.n - 1
        self._prompt_logprobs = PromptLogprobs.of(submitted.request.params, submitted.request.prompt_ids)
        if submitted.pooling is not None:
            self.pooling = PromptPooling(submitted.pooling, len(submitted.request.prompt_ids))
        self._answers = {root: self._answer(0)}

    @property
    def max_draft_tokens(self) -> int | None:
        # Forks are made after the prompt, between two steps, so its last token has no draft tokens.
        return 0 if self._unforked else self._submitted.request.params.speculative_tokens

    def accept(
        self, sequence: ScheduledSequence, logits: np.ndarray, best: int | None, draft_token: DraftToken | None = None
    ) -> list[MakePiece]:
        if self._unforked:
            return [make for member in self._forked(sequence) for make in self.accept(member, logits, best)]
        answer = self._answers[sequence]
        answer.choose(logits, best, draft_token)
        return self._chosen(sequence, answer)

    def read_prompt(self, logits: np.ndarray) -> None:
        assert self._prompt_logprobs is not None
        self._prompt_logprobs.add(logits)

    def sampler(self, sequence: ScheduledSequence) -> Sampler | None:
        return None if self._unforked else self._answers[sequence].sampler

    def next_stops(self, sequence: ScheduledSequence) -> frozenset[int] | None:
        return None if self._unforked else self._answers[sequence].next_stops()

    def take(self, sequence: ScheduledSequence, sampled: SampledToken) -> list[MakePiece]:
        answer = self._answers[sequence]
        answer.sampler.record(sampled[0])
        answer.take(sampled)
        return self._chosen(sequence, answer)

    def _forked(self, sequence: ScheduledSequence) -> list[ScheduledSequence]:
        """``sequence``, after its prompt, and a fork of it for each further answer."""
        members = [sequence]
        for choice in range(1, self._unforked + 1):
            child = self._context.fork(sequence)
            self._answers[child] = self._answer(choice)
            members.append(child)
        self._unforked = 0
        return members

    def _chosen(self, sequence: ScheduledSequence, answer: GeneratedSequence) -> list[MakePiece]:
        """Append the token chosen for the answer of ``sequence``, or end it; what makes its piece, if it is wanted."""
        if answer.finished:
            answer.cached_tokens, answer.admitted_at = sequence.cached_tokens or 0, sequence.admitted_at
            answer.hidden = None if self.pooling is None else self.pooling.result
            del self._answers[sequence]
            self.finished = not self._answers
            self._context.finish(sequence)
        else:
            sequence.tokens.append(answer.last_token)
        if self._submitted.whole:
            return [answer.whole_piece] if answer.finished else []
        return [answer.piece]

    def _answer(self, choice: int) -> GeneratedSequence:
        context = self._context
        return GeneratedSequence(
            self._submitted.index,
            self._submitted.request,
            context.eos,
            context.tokenizer,
            context.started,
            choice,
            self._prompt_logprobs,
        )
