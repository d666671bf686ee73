"""Beam search: the most likely answers, by forks of blocks and states."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Generation, Piece, Timings
from hybridge.runtime.generation.results import LENGTH, STOP
from hybridge.runtime.sampling import DraftToken
from hybridge.runtime.sampling.logprobs import token_logprobs
from hybridge.runtime.scheduler import ScheduledSequence
from hybridge.runtime.serving.group import Group, GroupContext, MakePiece
from hybridge.runtime.serving.request import ServingRequest


@dataclass(frozen=True)
class Hypothesis:
    """A finished answer; ``score`` is its log-probability over its length to the power of length_penalty."""

    token_ids: tuple[int, ...]
    score: float
    ended: bool


class BeamGroup(Group):
    """``beam_width`` beams that advance together: each step keeps the best continuations of all of them.

    A beam waits, with nothing to feed, until all beams have their logits; one that was preempted in between is computed
    again with the same result. A continuation with an end token is finished; the search stops when as many
    are finished as there are beams, whose answers are then the only ones, or at max_new_tokens.
    """

    def __init__(self, submitted: ServingRequest, root: ScheduledSequence, context: GroupContext) -> None:
        self._submitted, self._context = submitted, context
        params = submitted.request.params
        self._width, self._penalty, self._keep = params.beam_width, params.length_penalty, params.n
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(context.eos))
        # Log-probability of each beam, best first, and the continuations of those whose logits have come.
        self._beams: dict[ScheduledSequence, float] = {root: 0.0}
        self._continuations: dict[ScheduledSequence, list[tuple[int, float]]] = {}
        self._done: list[Hypothesis] = []
        self._cached, self._admitted_at = 0, 0.0
        self._first_token_at = 0.0

    def accept(
        self, sequence: ScheduledSequence, logits: np.ndarray, best: int | None, draft_token: DraftToken | None = None
    ) -> list[MakePiece]:
        if best is None:
            raise EngineError(
                "expected finite logits, found NaN or no finite value: verify the artifact, or use a wider type"
            )
        self._continuations[sequence] = list(token_logprobs(logits, best, 2 * self._width).top)
        self._cached, self._admitted_at = sequence.cached_tokens or 0, sequence.admitted_at
        if len(self._continuations) < len(self._beams):
            return []
        self._first_token_at = self._first_token_at or time.perf_counter()
        self._advance()
        return self._pieces() if self.finished else []

    def _advance(self) -> None:
        """Keep the best continuations: finished ones apart, the others as the beams of the next step."""
        beams = list(self._beams)
        new_tokens = len(beams[0].tokens) - len(self._submitted.request.prompt_ids) + 1
        continuations = [
            (self._beams[beam] + logprob, place, token)
            for place, beam in enumerate(beams)
            for token, logprob in self._continuations[beam]
        ]
        continuations.sort(key=lambda c: (-c[0], c[1], c[2]))
        chosen: list[tuple[float, ScheduledSequence, int]] = []
        for rank, (total, place, token) in enumerate(continuations[: 2 * self._width]):
            if token in self._ends:
                if rank < self._width:
                    self._done.append(self._hypothesis(beams[place], token, total, ended=True))
            elif len(chosen) < self._width:
                chosen.append((total, beams[place], token))
        self._continuations = {}
        if new_tokens == self._submitted.request.max_new_tokens:
            self._done += [self._hypothesis(beam, token, total, ended=False) for total, beam, token in chosen]
            chosen = []
        elif len(self._done) >= self._width:
            chosen = []
        self._beams = self._forked(beams, chosen)
        self.finished = not self._beams

    def _forked(
        self, beams: list[ScheduledSequence], chosen: list[tuple[float, ScheduledSequence, int]]
    ) -> dict[ScheduledSequence, float]:
        """The beams of the next step; those without a continuation end first, so that forks find their memory."""
        going_on = {beam for _, beam, _ in chosen}
        for beam in beams:
            if beam not in going_on:
                self._context.finish(beam)
        members: list[ScheduledSequence] = []
        for _, beam, _ in chosen:
            members.append(self._context.fork(beam) if beam in members else beam)
        # Only now, so that every fork has the tokens of its parent.
        for member, (_, _, token) in zip(members, chosen, strict=True):
            member.append(token)
        return {member: total for member, (total, _, _) in zip(members, chosen, strict=True)}

    def _hypothesis(self, beam: ScheduledSequence, token: int, total: float, ended: bool) -> Hypothesis:
        ids = (*beam.tokens[len(self._submitted.request.prompt_ids) :], token)
        return Hypothesis(ids, total / len(ids) ** self._penalty, ended)

    def _pieces(self) -> list[MakePiece]:
        """One piece for each of the n best answers."""
        best = sorted(self._done, key=lambda hypothesis: -hypothesis.score)[: self._keep]
        return [partial(self._piece, choice, hypothesis) for choice, hypothesis in enumerate(best)]

    def _piece(self, choice: int, hypothesis: Hypothesis) -> Piece:
        made = self._generation(hypothesis)
        return Piece(self._submitted.index, made.text, hypothesis.token_ids, None, made.finish_reason, made, choice)

    def _generation(self, hypothesis: Hypothesis) -> Generation:
        context, ids = self._context, hypothesis.token_ids
        text = ""
        if context.tokenizer is not None:
            prompt, params = self._submitted.request.prompt_ids, self._submitted.request.params
            detokenizer = context.tokenizer.detokenizer(prompt, params.skip_special_tokens)
            shown = ids[:-1] if hypothesis.ended and not params.include_stop_str_in_output else ids
            text = "".join([*map(detokenizer.push, shown), detokenizer.flush()])
        now = time.perf_counter()
        return Generation(
            text=text,
            token_ids=ids,
            prompt_token_ids=self._submitted.request.prompt_ids,
            finish_reason=STOP if hypothesis.ended else LENGTH,
            stopped_by=ids[-1] if hypothesis.ended else None,
            logprobs=None,
            cached_tokens=self._cached,
            timings=Timings(
                self._first_token_at - context.started,
                now - context.started,
                len(ids),
                self._admitted_at - context.started,
            ),
            score=hypothesis.score,
        )
