"""Speculation in a serving loop: which sequences get which candidates, and what became of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hybridge.artifact.errors import EngineError, described
from hybridge.artifact.paged import PAGED
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan
from hybridge.runtime.serving.step_runner import StepRunner
from hybridge.runtime.speculation import (
    CandidateCount,
    Draw,
    Proposal,
    SpeculationMetrics,
    SpeculationSettings,
    StepCost,
    Wanted,
)
from hybridge.runtime.speculation.candidate_count import expected_tokens
from hybridge.runtime.speculation.probes import Probes
from hybridge.runtime.speculation.settings import AUTO, SNAPSHOT

# Steps of so many rows that do without candidates to learn their time: the first may have to prepare something.
_COMPARED = 2


class Speculator:
    """The drafter of one loop, the counts of its sequences, and ``metrics``."""

    def __init__(self, settings: SpeculationSettings, engine: PagedEngine, rows: int) -> None:
        """``rows``: of a step at most. EngineError when the engine, or its artifact, cannot take back a recurrent state
        in the mode that is asked for."""
        self.holds_states = _holds_states(settings, engine)
        if self.holds_states:
            engine.prepare_held(rows, 1 + settings.tokens, settings.mode)
        self.metrics = SpeculationMetrics(engine.held_token_bytes if self.holds_states else engine.slot_bytes)
        self.cost = StepCost()
        self._settings, self._vocab = settings, engine.config.vocab_size
        self._plain_next, self._compared = False, Counter[int]()
        self._measures = settings.adaptive and settings.candidate_cost is None
        self._unobserved: tuple[StepPlan, float] | None = None
        self._drafter = settings.make_drafter()
        self._counts: dict[int, CandidateCount] = {}
        # By sequence, of the step that is under way.
        self._proposals: dict[int, Proposal] = {}
        # Rows that decode in it, and whether it does without its candidates, which would not pay.
        self._rows, self._waives, self._probes = 0, False, Probes()

    @property
    def candidate_slots(self) -> int | None:
        """Slots that a row needs beside its own; None: none at all, as the engine holds its states."""
        return None if self.holds_states else self._settings.tokens

    @property
    def runner(self) -> StepRunner | None:
        """The drafter, where it has to see the steps of the model."""
        return self._drafter if isinstance(self._drafter, StepRunner) else None

    def wanted(
        self, sequences: Iterable[tuple[ScheduledSequence, int, int | None, Draw | None]], rows: int
    ) -> list[Wanted]:
        """What to ask the drafter for; each sequence comes with how many candidates its row has room for, how many its
        request allows at most, and how it draws.

        ``rows``: that decode in the step, those without candidates included.
        """
        if self._plain_next:
            self._plain_next = False
            return []
        found = []
        self._rows = rows
        for sequence, room, asked, draw in sequences:
            if sequence.id not in self._counts:
                self._counts[sequence.id] = self._settings.make_count(asked, self.cost)
            most = min(room, self._counts[sequence.id].choose(rows))
            if most:
                found.append(Wanted(sequence.id, sequence.tokens, most, draw))
        return found

    def propose(self, wanted: Sequence[Wanted]) -> dict[int, tuple[int, ...]]:
        """Candidates for the next step by sequence.

        Where the drafter fails, or proposes what is no token, the sequences that it was asked for go on without: it is
        not asked for them again. The first time a RuntimeWarning says so.
        """
        self._proposals = {}
        try:
            self._proposals = self._proposed(wanted)
        except Exception as error:
            self._do_without(wanted, error)
        self._waives = self._measures and bool(self._proposals) and self._probes.skips(self._pays())
        if self._waives:
            self._proposals = {}
        return {sequence: proposal.token_ids for sequence, proposal in self._proposals.items()}

    def _proposed(self, wanted: Sequence[Wanted]) -> dict[int, Proposal]:
        found = self._drafter.propose(wanted) if wanted else []
        return {
            each.sequence: self._checked(proposal.first(each.most))
            for each, proposal in zip(wanted, found, strict=True)
            if len(proposal)
        }

    def _do_without(self, wanted: Sequence[Wanted], error: Exception) -> None:
        for each in wanted:
            self._counts[each.sequence] = self._settings.make_count(0, self.cost)
        self.metrics.failures += 1
        if self.metrics.failures == 1:
            warnings.warn(
                f"the drafter failed, and requests go on without candidates, which is slower: {described(error)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _pays(self) -> bool:
        """Whether all rows together are expected to get more tokens in the time of a step with these candidates.

        Each sequence chooses as if all rows had as many as it; where few have some, the others wait for them.
        """
        if self._rows < 2:
            return True
        tokens, candidates = float(self._rows - len(self._proposals)), 0
        for sequence, proposal in self._proposals.items():
            tokens += expected_tokens(self._counts[sequence].acceptance, len(proposal))[-1]
            candidates += len(proposal)
        return tokens > self._rows * self.cost.relative_time(candidates / self._rows, self._rows)

    def record_step(self, plan: StepPlan, sampling: Sequence[ScheduledSequence], accepted: Mapping[int, int]) -> None:
        """The step has run: count the rows that decoded, whatever became of their requests.

        ``sampling``: the sequences that get a token, in the plan's order; accepted: by sequence that had candidates.
        """
        plain = 0
        for sequence, row in zip(sampling, (row for row in plan.rows if row.samples), strict=True):
            if row.candidates:
                self.metrics.observe(len(row.candidates), accepted[row.sequence])
            else:
                # One token may also be the last of a prompt.
                plain += row.new_tokens == 1 and row.start >= len(sequence.request.prompt_ids)
        self.metrics.observe_plain(plain)

    def record_time(self, plan: StepPlan, seconds: float) -> None:
        """The step took so long, drafts and acceptance included; ``update_cost_model`` uses it."""
        # A step without the candidates that were drafted for it took the time of the drafts.
        self._unobserved = (plan, seconds) if self._measures and not self._waives else None

    def update_cost_model(self) -> None:
        """What candidates cost, from the last step that ended; only one that does nothing but decode says much."""
        if self._unobserved is None:
            return
        (plan, seconds), self._unobserved = self._unobserved, None
        rows = len(plan.rows)
        if not rows or not all(row.samples and row.new_tokens == 1 + len(row.candidates) for row in plan.rows):
            return
        self.cost.observe(rows, sum(len(row.candidates) for row in plan.rows), seconds)
        if not self.cost.knows(rows) and self._compared[rows] < _COMPARED:
            # For each number of rows, what a step takes without candidates is worth knowing.
            self._compared[rows] += 1
            self._plain_next = True

    def proposal(self, sequence: int, count: int) -> Proposal:
        """The first ``count`` candidates, which found room in the step."""
        return self._proposals[sequence].first(count) if count else Proposal()

    def observe(self, sequence: int, proposed: int, accepted: int) -> None:
        """``accepted`` of the ``proposed`` candidates of the sequence were right: what it will choose follows that."""
        count = self._counts.get(sequence)
        if count is not None:
            count.observe(proposed, accepted)

    def forked(self, parent: int, child: int) -> None:
        """The sequence ``child`` goes on from where ``parent`` is."""
        if self.runner is not None:
            self.runner.fork(parent, child)

    def forget(self, sequence: int) -> None:
        """The sequence has ended."""
        self._counts.pop(sequence, None)
        self._drafter.forget(sequence)

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


def _holds_states(settings: SpeculationSettings, engine: PagedEngine) -> bool:
    """Whether states wait to be advanced; else one is kept after each candidate."""
    config, most = engine.config, settings.tokens
    if not config.recurrent_layers:
        if isinstance(settings.mode, Mapping) and settings.mode:
            raise EngineError(
                f"speculation: mode: expected none by operator for a model without recurrent layers, found "
                f"{', '.join(settings.mode)}: leave it out"
            )
        return False
    if config.layout != PAGED:
        raise EngineError(
            f"speculation: expected an artifact of layout paged, found {config.layout}, whose recurrent states cannot "
            "be taken back: export with `layout='paged'`"
        )
    if settings.mode != SNAPSHOT and engine.most_held_tokens > most:
        return True
    if settings.mode not in (AUTO, SNAPSHOT):
        raise EngineError(
            f"speculation: expected an engine that advances states by up to {1 + most} tokens for mode "
            f"{settings.mode!r}, found {engine.name}, which does by {engine.most_held_tokens}: use another mode, or "
            "lower tokens"
        )
    if config.speculative_tokens < most:
        enough = max(config.speculative_tokens, 0 if settings.mode == SNAPSHOT else engine.most_held_tokens - 1)
        raise EngineError(
            f"speculation: expected an artifact exported with `speculative_tokens` of at least {most}, since its "
            f"states cannot be taken back otherwise, found {config.speculative_tokens}: export it so"
            + (f", or lower tokens to {enough}" if enough > 0 else "")
        )
    return False
