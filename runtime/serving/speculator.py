"""Speculation in a serving loop: which sequences get which candidates, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable

from artifact.config import RuntimeConfig
from artifact.errors import EngineError
from runtime.scheduler import ScheduledSequence, StepPlan
from runtime.speculation import (
    CandidateCount,
    Proposal,
    SpeculationMetrics,
    SpeculationSettings,
    Wanted,
)


class Speculator:
    """The drafter of one loop, the counts of its sequences, and ``metrics``."""

    def __init__(self, settings: SpeculationSettings, config: RuntimeConfig, slot_bytes: int) -> None:
        """EngineError when the artifact of ``config`` cannot take back a recurrent state."""
        if config.recurrent_layers and config.speculative_tokens < settings.tokens:
            raise EngineError(
                f"speculation: expected an artifact exported with --speculative-tokens of at least {settings.tokens}, "
                f"since its states cannot be taken back otherwise, found {config.speculative_tokens}: export it so, or "
                "lower tokens"
            )
        self.metrics = SpeculationMetrics(slot_bytes)
        self._settings, self._vocab = settings, config.vocab_size
        self._drafter = settings.make_drafter()
        self._counts: dict[int, CandidateCount] = {}
        # By sequence, of the step that is under way.
        self._proposals: dict[int, Proposal] = {}

    def propose(self, sequences: Iterable[tuple[ScheduledSequence, int | None]]) -> dict[int, tuple[int, ...]]:
        """Candidates for the next step by sequence; each comes with how many its request asked for at most."""
        wanted = []
        for sequence, asked in sequences:
            if sequence.id not in self._counts:
                self._counts[sequence.id] = self._settings.make_count(asked)
            most = self._counts[sequence.id].choose()
            if most:
                wanted.append(Wanted(sequence.id, sequence.tokens, most))
        found = self._drafter.propose(wanted) if wanted else []
        self._proposals = {}
        for each, proposal in zip(wanted, found, strict=True):
            if len(proposal):
                self._proposals[each.sequence] = self._checked(proposal.first(each.most))
        return {sequence: proposal.token_ids for sequence, proposal in self._proposals.items()}

    def ran(self, plan: StepPlan) -> None:
        """The step has run: count the rows that decoded without candidates."""
        self.metrics.observe_plain(sum(row.samples and row.new_tokens == 1 for row in plan.rows))

    def proposal(self, sequence: int, count: int) -> Proposal:
        """The first ``count`` candidates, which found room in the step."""
        return self._proposals[sequence].first(count) if count else Proposal()

    def observe(self, sequence: int, proposed: int, accepted: int) -> None:
        """A row of the sequence ran with ``proposed`` candidates, of which ``accepted`` were right."""
        self.metrics.observe(proposed, accepted)
        count = self._counts.get(sequence)
        if count is not None:
            count.observe(proposed, accepted)

    def forget(self, sequence: int) -> None:
        """The sequence has ended."""
        self._counts.pop(sequence, None)
        self._drafter.forget(sequence)

    def _checked(self, proposal: Proposal) -> Proposal:
        for token in proposal.token_ids:
            if not 0 <= token < self._vocab:
                raise EngineError(
                    f"speculation: expected proposed tokens from 0 to {self._vocab - 1}, found {token}: use a drafter "
                    "with the same tokenizer"
                )
        return proposal
