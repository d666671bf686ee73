"""Plans and launches a step while the step before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import CHOSEN_LATER, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.serving.executor import StepExecutor
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.prefix_cache import ServedCache
from hybridge.runtime.serving.step_in_flight import Continuation, NextStep, StepInFlight, sampled_rows
from hybridge.runtime.serving.token_choice import TokenChoice

Continuations = Mapping[ScheduledSequence, Continuation]
Sampled = Sequence[ScheduledSequence]


class StepAhead:
    """The step in progress is committed before it ends, so that the next one is planned like any other.

    Only the tokens that it chooses are missing then: the engine passes them on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: LiveRequests,
        executor: StepExecutor,
        cache: ServedCache | None,
        choice: TokenChoice,
    ) -> None:
        self._scheduler, self._requests, self._executor, self._choice = scheduler, requests, executor, choice
        self._has_host_tier = cache is not None and cache.host is not None

    def continuations(self, before: StepInFlight) -> Continuations | None:
        """How the sequences of ``before`` go on; None if what follows depends on its tokens in other ways, or the host
        reads its logits."""
        if before.result is None or before.committed or not before.plan.is_plain:
            return None
        samplers, samplings = self._choice.samplers, before.samplings
        masked = {index for index, each in samplers.items() if each.masks_follow}
        if samplings is CHOSEN_LATER:
            plain = {index: each for index, each in samplers.items() if not each.waits_for_masks}
            samplings = {index: each.draw(self._choice.vocab) for index, each in plain.items()}
        return self._requests.continuations(sampled_rows(before.plan, before.sampling), samplings, masked)

    def plan(self, before: StepInFlight, continuations: Continuations) -> StepPlan | None:
        """Commit ``before`` and plan the step after it; None if there is nothing to do, or a sequence may have to be
        preempted: the tokens of ``before`` may free memory."""
        if self._has_host_tier and self._scheduler.first_waiting():
            return None  # what they begin with may be copied from host memory, between two steps
        self._scheduler.commit(before.plan, awaited=continuations)
        before.committed = True
        return None if self._scheduler.may_preempt() else self._scheduler.plan()

    def launch(self, before: StepInFlight, plan: StepPlan, continuations: Continuations) -> NextStep:
        """Launch ``plan``, if the engine can, and the host needs no logits of ``before``; its tokens are chosen later
        if any of them waits for a mask. Those of ``before`` are chosen here at the latest.

        After an exception ``plan`` has failed, and ``before`` goes on, unless it says that it has failed too.
        """
        sampling, feeding = self._fed(plan, continuations)
        result = self._choose_and_launch(before, plan, feeding)
        if result is None:
            if before.waits_for_choice:
                self._choice.choose(before)
            result = self._launch(before, plan, feeding)
        return NextStep(plan, continuations, sampling, feeding.samplings, result)

    def _choose_and_launch(self, before: StepInFlight, plan: StepPlan, feeding: Feeding) -> StepResult | None:
        """Choose the tokens of ``before`` and launch ``plan``, both made ready while the masks of ``before`` are
        computed; None, with nothing done, where that is not possible."""
        if before.result is None or not (before.waits_for_choice and plan.is_plain and self._executor.prepares_next):
            return None
        ahead = self._choice.draw_ahead()
        if ahead is None:
            return None
        prepared = self._executor.prepare_next(before.result, ahead, plan, feeding)
        if prepared is None or not self._choice.arrived(ahead):
            return None
        self._choice.choose_by(prepared.choose, before, ahead)
        return prepared.launch()

    def _launch(self, before: StepInFlight, plan: StepPlan, feeding: Feeding) -> StepResult | None:
        """Launch ``plan`` behind ``before``, whose tokens are chosen; None where that is not possible."""
        assert before.result is not None
        edited = [how for how in before.samplings.values() if how.edits is not None]
        if not plan.is_plain or not all([how.masks_follow for how in edited]):
            return None
        return self._executor.launch_next(before.result, plan, feeding)

    def _fed(self, plan: StepPlan, continuations: Continuations) -> tuple[Sampled, Feeding]:
        """The sequences that get a token from ``plan``, and what their rows are fed."""
        if not plan.is_plain:
            return [], Feeding((), {})
        masked = any([each.masked for each in continuations.values()])
        if plan.repeats:
            # Rows, in this order, whose objects are not made for this.
            every = continuations.values()
            chosen = {} if masked else {each.source: each.sampling for each in every if each.sampling is not None}
            return list(continuations), Feeding([each.stops for each in every], CHOSEN_LATER if masked else chosen)
        known, sampling, samplings = self._scheduler.sequences, list[ScheduledSequence](), dict[int, TokenSampling]()
        stops, sources = list[frozenset[int]](), list[int]()
        # Sequences that get the first token after a prompt, and its index.
        firsts = list[tuple[ScheduledSequence, int]]()
        for row in plan.rows:
            sequence = known[row.sequence]
            going_on = continuations.get(sequence)
            stops.append(frozenset[int]() if going_on is None else going_on.stops)
            sources.append(-1 if going_on is None else going_on.source)
            if not row.samples:
                continue
            if going_on is None:
                firsts.append((sequence, len(sampling)))
            elif going_on.sampling is not None:
                samplings[len(sampling)] = going_on.sampling
            sampling.append(sequence)
        samplers = self._requests.samplers(firsts)
        if masked or any(sampler.waits_for_masks for sampler in samplers.values()):
            return sampling, Feeding(stops, CHOSEN_LATER, sources)
        samplings |= {index: sampler.draw(self._choice.vocab) for index, sampler in samplers.items()}
        return sampling, Feeding(stops, dict(sorted(samplings.items())), sources)
