"""Draft tokens of a loop's sequences: requested before a step, accepted or rejected after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import DraftToken
from hybridge.runtime.scheduler import PlannedRow, ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.scheduler.scheduler import NONE_ACCEPTED
from hybridge.runtime.serving.draft_outcome import DraftOutcome
from hybridge.runtime.serving.group import Group
from hybridge.runtime.serving.live_requests import LiveRequests, choice_error
from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.speculation import accepted_count


class Verdict(NamedTuple):
    """accepted: number of accepted draft tokens of each sequence with some. others: sequences without draft tokens,
    whose next token is still to be chosen, each with the index of its logits."""

    others: Iterable[tuple[ScheduledSequence, int]]
    accepted: Mapping[int, int] = NONE_ACCEPTED


class DraftCheck:
    """Asks ``speculator`` for draft tokens of ``requests``, and checks them after the step."""

    def __init__(self, speculator: Speculator, scheduler: Scheduler, requests: LiveRequests) -> None:
        self._speculator, self._scheduler, self._requests = speculator, scheduler, requests

    def propose(self) -> Mapping[int, tuple[int, ...]]:
        """Draft tokens by sequence."""
        drafting, rows = [], 0
        for sequence, room in self._scheduler.decoding():
            rows += 1
            known = self._requests.of(sequence)
            if room > 0 and known is not None and known[1].max_draft_tokens != 0:
                drafting.append((sequence, room, known[1].max_draft_tokens, known[1].draw(sequence)))
        return self._speculator.propose(self._speculator.requests(drafting, rows))

    def verdict(
        self, plan: StepPlan, sampling: Sequence[ScheduledSequence], result: StepResult, best: Sequence[int | None]
    ) -> Verdict:
        """Give the sequences with draft tokens their tokens; ``sampling`` are all that get one, in the plan's order."""
        accepted: dict[int, int] = {}
        others: list[tuple[ScheduledSequence, int]] = []
        rows = [place for place in zip(plan.rows, plan.logits_starts(), strict=True) if place[0].samples]
        for sequence, (row, begin) in zip(sampling, rows, strict=True):
            first = begin + row.prompt_logits
            if row.draft_tokens:
                accepted[row.sequence] = self._verify(sequence, row, DraftOutcome(result, best, first))
            else:
                others.append((sequence, first))
        return Verdict(others, accepted)

    def _verify(self, sequence: ScheduledSequence, row: PlannedRow, step: DraftOutcome) -> int:
        """Give a sequence its new tokens; returns how many draft tokens are accepted."""
        known = self._requests.of(sequence)
        if known is None:
            return 0  # cancelled during the step, or ended with another sequence of the same request
        id_, group = known
        try:
            proposal = self._speculator.proposal(sequence.id, len(row.draft_tokens))
            accepted = accepted_count(
                proposal, lambda place, draft_token: self._choose(sequence, id_, group, step, place, draft_token)
            )
        except Exception as error:
            self._requests.end_with((id_,), choice_error(error))
            # If the failure came after the choice, the sequence already has its last token.
            new = sequence.tokens[row.start + 1 :]
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(new, row.draft_tokens, strict=False)))
        self._speculator.observe(sequence.id, len(row.draft_tokens), accepted)
        self._requests.drop_finished(id_)
        return accepted

    def _choose(
        self,
        sequence: ScheduledSequence,
        id_: int,
        group: Group,
        step: DraftOutcome,
        place: int,
        draft_token: DraftToken | None,
    ) -> int | None:
        """The token after ``place`` draft tokens; None when the sequence has ended with it."""
        logits, token = step.after(place, group.takes_best)
        self._requests.tell(id_, group.accept(sequence, logits, token, draft_token))
        return None if sequence.cancelled else sequence.tokens[-1]
