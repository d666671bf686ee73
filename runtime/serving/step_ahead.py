"""Plans and launches a step while the step before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridge.runtime.engines.paged import Feeding
from hybridge.runtime.sampling import CHOSEN_LATER, Sampler, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.serving.executor import StepExecutor
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.prefix_cache import ServedCache
from hybridge.runtime.serving.step_in_flight import Continuation, NextStep, StepInFlight, sampled_rows

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
        vocab: int,
    ) -> None:
        self._scheduler, self._requests, self._executor, self._vocab = scheduler, requests, executor, vocab
        self._has_host_tier = cache is not None and cache.host is not None

    def continuations(self, before: StepInFlight, samplers: Mapping[int, Sampler]) -> Continuations | None:
        """How the sequences of ``before`` go on; None if what follows depends on its tokens in other ways, or the host
        reads its logits. samplers: of its rows, which choose its tokens later perhaps."""
        if before.result is None or before.committed or not before.plan.is_plain:
            return None
        samplings, masked = before.samplings, {index for index, each in samplers.items() if each.masks_follow}
        if samplings is CHOSEN_LATER:
            plain = {index: each for index, each in samplers.items() if not each.waits_for_masks}
            samplings = {index: each.draw(self._vocab) for index, each in plain.items()}
        return self._requests.continuations(sampled_rows(before.plan, before.sampling), samplings, masked)

    def plan(self, before: StepInFlight, continuations: Continuations) -> StepPlan | None:
        """Commit ``before`` and plan the step after it; None if there is nothing to do, or a sequence may have to be
        preempted: the tokens of ``before`` may free memory."""
        if self._has_host_tier and self._scheduler.first_waiting():
            return None  # what they begin with may be copied from host memory, between two steps
        self._scheduler.commit(before.plan, awaited=continuations)
        before.committed = True
        return None if self._scheduler.may_preempt() else self._scheduler.plan()

    def launch(
        self, before: StepInFlight, plan: StepPlan, continuations: Continuations, fed: tuple[Sampled, Feeding]
    ) -> NextStep:
        """Launch ``plan``, if the engine can, and the host needs no logits of ``before``; its tokens are chosen later
        if any of them waits for a mask. fed: as ``fed`` gives it."""
        assert before.result is not None
        sampling, feeding = fed
        edited = [how for how in before.samplings.values() if how.edits is not None]
        if not plan.is_plain or not all([how.masks_follow for how in edited]):
            return NextStep(plan, continuations, (), {}, None)
        result = self._executor.launch_next(before.result, plan, feeding)
        return NextStep(plan, continuations, sampling, feeding.samplings, result)

    def fed(self, plan: StepPlan, continuations: Continuations) -> tuple[Sampled, Feeding]:
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
        samplings |= {index: sampler.draw(self._vocab) for index, sampler in samplers.items()}
        return sampling, Feeding(stops, dict(sorted(samplings.items())), sources)
