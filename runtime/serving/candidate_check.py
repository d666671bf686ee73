"""Candidate tokens of a loop's sequences: asked for before a step, accepted or not after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import Guess
from hybridge.runtime.scheduler import PlannedRow, ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.scheduler.scheduler import NONE_ACCEPTED
from hybridge.runtime.serving.candidate_outcome import CandidateOutcome
from hybridge.runtime.serving.group import Group
from hybridge.runtime.serving.live_requests import LiveRequests, choice_error
from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.speculation import accepted_count


class Verdict(NamedTuple):
    """accepted: how many candidates were right, by sequence that had some. others: the sequences that had none and
    choose their token yet, each with the index of its logits."""

    others: Iterable[tuple[ScheduledSequence, int]]
    accepted: Mapping[int, int] = NONE_ACCEPTED


class CandidateCheck:
    """Asks ``speculator`` for the candidates of ``requests``, and lets these accept them."""

    def __init__(self, speculator: Speculator, scheduler: Scheduler, requests: LiveRequests) -> None:
        self._speculator, self._scheduler, self._requests = speculator, scheduler, requests

    def propose(self) -> Mapping[int, tuple[int, ...]]:
        """Candidates by sequence."""
        asked, rows = [], 0
        for sequence, room in self._scheduler.decoding():
            rows += 1
            known = self._requests.of(sequence)
            if room > 0 and known is not None and known[1].candidates != 0:
                asked.append((sequence, room, known[1].candidates, known[1].draw(sequence)))
        return self._speculator.propose(self._speculator.wanted(asked, rows))

    def verdict(
        self, plan: StepPlan, sampling: Sequence[ScheduledSequence], result: StepResult, best: Sequence[int | None]
    ) -> Verdict:
        """Give the sequences with candidates their tokens; ``sampling`` are all that get one, in the plan's order."""
        accepted: dict[int, int] = {}
        others: list[tuple[ScheduledSequence, int]] = []
        places = [place for place in zip(plan.rows, plan.logits_places(), strict=True) if place[0].samples]
        for sequence, (row, begin) in zip(sampling, places, strict=True):
            first = begin + row.prompt_logits
            if row.candidates:
                accepted[row.sequence] = self._verify(sequence, row, CandidateOutcome(result, best, first))
            else:
                others.append((sequence, first))
        return Verdict(others, accepted)

    def _verify(self, sequence: ScheduledSequence, row: PlannedRow, step: CandidateOutcome) -> int:
        """Give a sequence with candidates its tokens; how many of the candidates are accepted."""
        known = self._requests.of(sequence)
        if known is None:
            return 0  # cancelled while the step was under way, or ended with another sequence of the same request
        id_, group = known
        try:
            proposal = self._speculator.proposal(sequence.id, len(row.candidates))
            accepted = accepted_count(
                proposal, lambda place, guess: self._choose(sequence, id_, group, step, place, guess)
            )
        except Exception as error:
            self._requests.end_with((id_,), choice_error(error))
            # The sequence has its last token already where what failed came after the choice.
            new = sequence.tokens[row.start + 1 :]
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(new, row.candidates, strict=False)))
        self._speculator.observe(sequence.id, len(row.candidates), accepted)
        self._requests.drop_finished(id_)
        return accepted

    def _choose(
        self,
        sequence: ScheduledSequence,
        id_: int,
        group: Group,
        step: CandidateOutcome,
        place: int,
        guess: Guess | None,
    ) -> int | None:
        """The token after ``place`` candidates; None when the sequence has ended with it."""
        logits, token = step.after(place, group.takes_best)
        self._requests.tell(id_, group.accept(sequence, logits, token, guess))
        return None if sequence.cancelled else sequence.tokens[-1]
