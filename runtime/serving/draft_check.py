"""Draft tokens of a loop's sequences: requested before a step, accepted or rejected after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import DraftToken, TokenSampling
from hybridge.runtime.scheduler import PlannedRow, ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.scheduler.scheduler import NONE_ACCEPTED
from hybridge.runtime.serving.draft_outcome import DraftOutcome
from hybridge.runtime.serving.group import Group
from hybridge.runtime.serving.live_requests import LiveRequests, choice_error
from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.serving.step_in_flight import StepInFlight
from hybridge.runtime.speculation import accepted_count

_NO_DRAFT_TOKENS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


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
        version = self._scheduler.version
        if self._speculator.finds_nothing(version) or self._speculator.rests(version):
            return _NO_DRAFT_TOKENS
        drafting, rows = [], 0
        for sequence, room in self._scheduler.decoding():
            rows += 1
            known = self._requests.of(sequence)
            if room > 0 and known is not None and known[1].max_draft_tokens != 0:
                drafting.append((sequence, room, known[1].max_draft_tokens, known[1]))
        requests = self._speculator.requests(drafting, rows)
        if rows == len(drafting) == self._scheduler.running:
            if not requests:
                self._speculator.rest(version)
            elif len(requests) == rows:
                self._speculator.search(version, requests)
        return self._speculator.propose(requests)

    def samplings(self, plan: StepPlan, sampling: Sequence[ScheduledSequence], vocab: int) -> dict[int, TokenSampling]:
        """How to sample the tokens of rows with draft tokens in the step, by index of their logits.

        Leaves out tokens that depend on the acceptance of draft tokens, and rows that are greedy or not sampled.
        """
        found: dict[int, TokenSampling] = {}
        for sequence, row, first in _rows(plan, sampling):
            if not row.draft_tokens:
                continue
            known, proposal = self._requests.of(sequence), self._speculator.proposal(sequence.id, len(row.draft_tokens))
            sampler = None if known is None or known[1].takes_best else known[1].sampler(sequence)
            if sampler is None or proposal.probabilities is not None:
                continue
            following = sampler.samplings(vocab, row.draft_tokens)
            if following[0].process is None:
                found |= {first + index: how for index, how in enumerate(following)}
        return found

    def verdict(self, step: StepInFlight, result: StepResult, best: Sequence[int | None]) -> Verdict:
        """Give the sequences of ``step`` with draft tokens their tokens. result, best: the step's."""
        accepted: dict[int, int] = {}
        others: list[tuple[ScheduledSequence, int]] = []
        drafted: list[tuple[ScheduledSequence, PlannedRow, int]] = []
        for sequence, row, first in _rows(step.plan, step.sampling):
            if row.draft_tokens:
                drafted.append((sequence, row, first))
            else:
                others.append((sequence, first))
        indices = [first + index for _, row, first in drafted for index in range(1 + len(row.draft_tokens))]
        sampled = result.sampled({index: step.samplings[index] for index in indices if index in step.samplings})
        for sequence, row, first in drafted:
            accepted[row.sequence] = self._verify(sequence, row, DraftOutcome(result, best, first, sampled))
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
        sampled = step.sampled_after(place)
        if sampled is not None:
            self._requests.tell(id_, group.take(sequence, sampled))
        else:
            logits, token = step.after(place, group.takes_best)
            self._requests.tell(id_, group.accept(sequence, logits, token, draft_token))
        return None if sequence.cancelled else sequence.tokens[-1]


def _rows(plan: StepPlan, sampling: Sequence[ScheduledSequence]) -> Iterator[tuple[ScheduledSequence, PlannedRow, int]]:
    """The rows of the sequences ``sampling``, and the index of the logits after each one's own token."""
    rows = [(row, begin) for row, begin in zip(plan.rows, plan.logits_starts(), strict=True) if row.samples]
    for sequence, (row, begin) in zip(sampling, rows, strict=True):
        yield sequence, row, begin + row.prompt_logits
