"""Speculation in a serving loop: chooses draft lengths, asks the drafter and records acceptance."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hybridge.artifact.errors import EngineError, described
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan
from hybridge.runtime.serving.group import Group
from hybridge.runtime.serving.step_runner import StepRunner
from hybridge.runtime.speculation import (
    DraftLength,
    DraftRequest,
    NgramDrafter,
    Proposal,
    SpeculationMetrics,
    SpeculationSettings,
    StepCost,
)
from hybridge.runtime.speculation.draft_length import USUAL_ACCEPTANCE, expected_tokens
from hybridge.runtime.speculation.drafter import ForgetsAll
from hybridge.runtime.speculation.probes import Probes

# Steps without draft tokens that are timed for each number of rows; the first may include preparation.
_COMPARED = 2
# Of steps that repeat the one before them, without draft tokens, one in so many is measured.
_OBSERVED_REPEATS = 8
# Weight of the sequence that ended last in the acceptance with which others begin.
_NEWEST_SEQUENCE = 0.5


class Speculator:
    """The drafter of one loop, the counts of its sequences, and ``metrics``."""

    def __init__(self, settings: SpeculationSettings, engine: PagedEngine, rows: int) -> None:
        """``rows``: of a step at most. EngineError when the engine, or its artifact, cannot roll back a recurrent state
        in the requested mode."""
        _check_rollback(settings, engine)
        if engine.config.recurrent_layers:
            engine.prepare_rollback(rows, 1 + settings.tokens, settings.mode)
        self.metrics = SpeculationMetrics(engine.rollback_token_bytes)
        self.cost = StepCost()
        # The last step and its time, where ``update_cost_model`` is to learn from it.
        self.unobserved: tuple[StepPlan, float] | None = None
        self._settings, self._vocab = settings, engine.config.vocab_size
        self._plain_next, self._compared = False, Counter[int]()
        self._measures = settings.adaptive and settings.draft_token_cost is None
        # Steps that repeat the one before them and need not be measured, until the next one that is.
        self._unmeasured = 0
        self._chosen = self.metrics.chosen
        self._drafter = settings.make_drafter()
        self._counts: dict[int, DraftLength] = {}
        self._usual = USUAL_ACCEPTANCE
        # By sequence, of the step in progress.
        self._proposals: dict[int, Proposal] = {}
        # Rows that decode in it, and whether its draft tokens were dropped because they would not pay.
        self._rows, self._waives, self._probes = 0, False, Probes()
        # What keeps the step in progress from trying draft tokens; steps for which it does, while the queues have this
        # version; and how many of them have passed.
        self._waiting: list[Probes] = []
        self._rest = self._rested = self._version = 0
        # Look-up and tokens of all sequences, while the queues have this version, if each may have draft tokens where
        # look-up finds some; and the version for which ``finds_nothing`` answers: the same, unless a sequence waits.
        self._searched: Sequence[tuple[Callable[[Sequence[int]], bool], Sequence[int]]] = ()
        self._searched_version = self._answered_version = -1

    @property
    def runner(self) -> StepRunner | None:
        """The drafter, where it has to see the steps of the model."""
        return self._drafter if isinstance(self._drafter, StepRunner) else None

    def rests(self, version: int) -> bool:
        """Whether the next step has no draft tokens, whatever its sequences are; the queues have ``version``."""
        if self._rested < self._rest and version == self._version:
            self._rested += 1
            if self._rested == self._rest:
                self._end_rest()
            return True
        if self._rest:
            self._end_rest()
        return False

    def rest(self, version: int) -> None:
        """After ``requests`` of all sequences gave none: let ``rests`` answer as long as it will give none again."""
        self._version, self._rest = version, min((probes.waiting for probes in self._waiting), default=0)

    def search(self, version: int, requests: Sequence[DraftRequest]) -> None:
        """Let ``finds_nothing`` answer for ``requests``, of all sequences, while the queues have ``version``."""
        if isinstance(self._drafter, NgramDrafter):
            self._searched = [(self._drafter.index(each.sequence).finds, each.tokens) for each in requests]
            self._searched_version = version

    def finds_nothing(self, version: int) -> bool:
        """Whether the next step has no draft tokens, because look-up finds none for any sequence.

        False where that is not known: then ``requests`` and ``propose`` decide.
        """
        if version != self._answered_version:
            return False
        for finds, tokens in self._searched:
            if finds(tokens):
                return False
        # This is a step without draft tokens, as was to be measured.
        self._plain_next = False
        return True

    def requests(
        self, sequences: Iterable[tuple[ScheduledSequence, int, int | None, Group]], rows: int
    ) -> list[DraftRequest]:
        """Requests for the drafter.

        ``sequences``: each with the draft tokens that its row has room for, the most that its request allows, and its
        group. ``rows``: all rows that decode in the step, also those without draft tokens.
        """
        self._waiting, self._answered_version = [], -1
        if self._plain_next:
            self._plain_next = False
            return []
        if self._measures and rows > 1 and self._probes.waits():
            self._waiting = [self._probes]
            return []
        found = []
        self._rows = rows
        for sequence, room, limit, group in sequences:
            if sequence.id not in self._counts:
                self._counts[sequence.id] = self._settings.make_count(limit, self.cost, self._usual)
            count = self._counts[sequence.id]
            if isinstance(self._drafter, NgramDrafter):
                count.foresee(self._drafter.index(sequence.id).foreseen(sequence.tokens))
            most = min(room, count.choose(rows))
            self._waiting.append(count.probes)
            if most:
                found.append(DraftRequest(sequence.id, sequence.tokens, most, group.draw(sequence)))
        return found

    def propose(self, requests: Sequence[DraftRequest]) -> dict[int, tuple[int, ...]]:
        """Draft tokens for the next step by sequence.

        Where the drafter fails or proposes an invalid token, drafting is disabled for these sequences; the first
        failure gives a RuntimeWarning.
        """
        self._proposals = {}
        try:
            self._proposals = self._proposed(requests)
        except Exception as error:
            self._do_without(requests, error)
        self._waives = (
            self._measures and bool(self._proposals) and self._rows > 1 and not self._probes.tries(self._loss())
        )
        if self._waives:
            self._proposals = {}
        self._find_answered()
        return {sequence: proposal.token_ids for sequence, proposal in self._proposals.items()}

    def _end_rest(self) -> None:
        for probes in self._waiting:
            probes.skip(self._rested)
        self._rest = self._rested = 0
        self._find_answered()

    def _find_answered(self) -> None:
        waits = any(probes.waiting for probes in (self._probes, *self._waiting))
        self._answered_version = -1 if waits else self._searched_version

    def _proposed(self, requests: Sequence[DraftRequest]) -> dict[int, Proposal]:
        found = self._drafter.propose(requests) if requests else []
        return {
            each.sequence: self._checked(proposal.first(each.most))
            for each, proposal in zip(requests, found, strict=True)
            if len(proposal)
        }

    def _do_without(self, requests: Sequence[DraftRequest], error: Exception) -> None:
        for each in requests:
            self._counts[each.sequence] = self._settings.make_count(0, self.cost)
        self.metrics.failures += 1
        if self.metrics.failures == 1:
            warnings.warn(
                f"the drafter failed; requests continue without draft tokens, which is slower: {described(error)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _loss(self) -> float:
        """The time that all rows together are expected to lose with these draft tokens, in steps without.

        Each sequence chooses as if all rows had as many draft tokens as it; where few have any, the others wait.
        """
        tokens, draft_tokens = float(self._rows - len(self._proposals)), 0
        for sequence, proposal in self._proposals.items():
            tokens += expected_tokens(self._counts[sequence].acceptance, len(proposal))[-1]
            draft_tokens += len(proposal)
        return self.cost.relative_time(draft_tokens / self._rows, self._rows) - tokens / self._rows

    def record_step(
        self, plan: StepPlan, sampling: Sequence[ScheduledSequence], accepted: Mapping[int, int], seconds: float
    ) -> None:
        """Count the rows that the step decoded, also those of cancelled requests, and keep its time for
        ``update_cost_model``.

        ``sampling``: the sequences that get a token, in the plan's order; accepted: by sequence that had draft tokens;
        seconds: drafts and acceptance included.
        """
        if plan.repeats:
            self._chosen[0] += len(sampling)
            if self._unmeasured:
                self._unmeasured -= 1
                return
        else:
            self._count(plan, sampling, accepted)
        if not self._measures or self._waives:
            # A step without the draft tokens that were drafted for it took the time of the drafts.
            return
        self.unobserved = plan, seconds
        if not self.cost.knows(plan.num_rows):
            self._unmeasured = 0
        elif plan.repeats:
            self._unmeasured = _OBSERVED_REPEATS - 1

    def _count(self, plan: StepPlan, sampling: Sequence[ScheduledSequence], accepted: Mapping[int, int]) -> None:
        for sequence, row in zip(sampling, (row for row in plan.rows if row.samples), strict=True):
            if row.draft_tokens:
                self.metrics.observe(len(row.draft_tokens), accepted[row.sequence])
            elif row.new_tokens == 1 and row.start >= len(sequence.request.prompt_ids):
                # One token may also be the last of a prompt.
                self.metrics.observe(0, 0)

    def update_cost_model(self) -> None:
        """Learn the cost of draft tokens from the step that is ``unobserved``, if it only decoded."""
        assert self.unobserved is not None
        (plan, seconds), self.unobserved = self.unobserved, None
        rows, draft_tokens = plan.num_rows, 0
        if not plan.repeats:
            if not rows or not all(row.samples and row.new_tokens == 1 + len(row.draft_tokens) for row in plan.rows):
                return
            draft_tokens = sum(len(row.draft_tokens) for row in plan.rows)
        self.cost.observe(rows, draft_tokens, seconds)
        if not self.cost.knows(rows) and self._compared[rows] < _COMPARED:
            # For each number of rows, measure a step without draft tokens.
            self._compared[rows] += 1
            self._plain_next = True

    def proposal(self, sequence: int, count: int) -> Proposal:
        """The first ``count`` draft tokens, which fitted into the step."""
        return self._proposals[sequence].first(count) if count else Proposal()

    def observe(self, sequence: int, proposed: int, accepted: int) -> None:
        """Record that ``accepted`` of the ``proposed`` draft tokens of the sequence were accepted."""
        count = self._counts.get(sequence)
        if count is not None:
            count.observe(proposed, accepted)

    def forked(self, parent: int, child: int) -> None:
        """``child`` is a fork of ``parent``."""
        if self.runner is not None:
            self.runner.fork(parent, child)

    def forget(self, sequence: int) -> None:
        """Forget an ended sequence.

        Others begin with its acceptance, if that is known without draft tokens: else a few sequences that accept none
        would keep all later ones from trying.
        """
        count = self._counts.pop(sequence, None)
        if count is not None and self._settings.foresees:
            self._usual += _NEWEST_SEQUENCE * (count.acceptance - self._usual)
        self._drafter.forget(sequence)

    def start_over(self) -> None:
        """Forget all sequences, in whatever state their records are."""
        self._counts, self._proposals, self._waiting = {}, {}, []
        self._rest = self._rested = 0
        self._searched, self._searched_version, self._answered_version = (), -1, -1
        self.unobserved = None
        if isinstance(self._drafter, ForgetsAll):
            self._drafter.forget_all()

    def _checked(self, proposal: Proposal) -> Proposal:
        probabilities = proposal.probabilities
        if probabilities is not None and probabilities.shape[1] != self._vocab:
            raise EngineError(
                f"speculation: expected probabilities of the model's {self._vocab} tokens, found "
                f"{probabilities.shape[1]}: use a drafter with the same tokenizer"
            )
        for token in proposal.token_ids:
            if not 0 <= token < self._vocab:
                raise EngineError(
                    f"speculation: expected proposed tokens from 0 to {self._vocab - 1}, found {token}: use a drafter "
                    "with the same tokenizer"
                )
        return proposal


def _check_rollback(settings: SpeculationSettings, engine: PagedEngine) -> None:
    """EngineError when ``engine`` cannot roll back the states of as many draft tokens as ``settings`` ask for."""
    config, most = engine.config, settings.tokens
    if not config.recurrent_layers:
        if isinstance(settings.mode, Mapping) and settings.mode:
            raise EngineError(
                f"speculation: mode: expected none by operator for a model without recurrent layers, found "
                f"{', '.join(settings.mode)}: leave it out"
            )
        return
    limit = engine.max_rollback_tokens
    if limit < 2:
        raise EngineError(f"speculation: {engine.no_rollback}")
    if limit <= most:
        raise EngineError(
            f"speculation: expected an engine that can roll back {1 + most} tokens of a row, found {engine.name}, "
            f"which can roll back {limit}: lower tokens to {limit - 1}"
        )
