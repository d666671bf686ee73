"""How the tokens of a step are chosen: as its launch says, or behind it, once masks of allowed tokens are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, Sampler, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan
from hybridge.runtime.serving.draft_check import DraftCheck
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.step_in_flight import StepInFlight, sampled_rows
from hybridge.runtime.serving.step_masks import StepMasks


class TokenChoice:
    """Of the last planned step, and of steps that repeat it.

    sampling: the sequences that get a token each. samplers: those of some of them, by index of their logits. masks:
    those that the tokens wait for. vocab: the size of the vocabulary.
    """

    def __init__(self, engine: PagedEngine, requests: LiveRequests, draft_check: DraftCheck | None) -> None:
        self._engine, self._requests, self._draft_check = engine, requests, draft_check
        self._samples_in_steps, self._chooses_later = engine.samples_in_steps, engine.chooses_later
        self.vocab = engine.config.vocab_size
        self.sampling: Sequence[ScheduledSequence] = []
        self.samplers: Mapping[int, Sampler] = {}
        self.masks = StepMasks()

    def of(self, plan: StepPlan, sampling: Sequence[ScheduledSequence]) -> None:
        """From now on, of the step ``plan``, in which ``sampling`` get a token each."""
        self.sampling = sampling
        self.samplers = self._requests.samplers(sampled_rows(plan, sampling))
        # Rows with draft tokens wait for masks too.
        self.masks.of(self.samplers.values() if plan.is_plain else self._requests.all_samplers(sampling))

    def at_launch(self, plan: StepPlan) -> Mapping[int, TokenSampling]:
        """``draw``, or CHOSEN_LATER where that would wait for masks and the engine can do without."""
        return CHOSEN_LATER if self.masks and self._chooses_later else self.draw(plan)

    def draw(self, plan: StepPlan) -> Mapping[int, TokenSampling]:
        """How to choose the tokens of ``plan``, by index of their logits."""
        if not self.samplers and (self._draft_check is None or plan.repeats):
            return NO_SAMPLING
        found = {index: sampler.draw(self.vocab) for index, sampler in self.samplers.items()}
        if self._draft_check is not None and self._samples_in_steps and not plan.is_plain:
            found |= self._draft_check.samplings(plan, self.sampling, self.vocab)
        return found

    def draw_ahead(self) -> dict[int, TokenSampling] | None:
        """``draw`` with masks that are still being computed, for a plain step; None where that is not possible."""
        found: dict[int, TokenSampling] = {}
        for index, sampler in self.samplers.items():
            how = sampler.draw_ahead(self.vocab)
            if how is None:
                return None
            found[index] = how
        return found

    def arrived(self, ahead: Mapping[int, TokenSampling]) -> bool:
        """Wait for the masks of ``ahead``, which ``draw_ahead`` gave; False where one failed: ``draw`` says why."""
        samplers = self.samplers
        return all([samplers[index].mask_arrived(how) for index, how in ahead.items()])

    def choose(self, step: StepInFlight) -> None:
        """Choose the tokens of ``step``, which waits for that. After an error, which is raised, the step has failed."""
        assert step.result is not None
        try:
            samplings = self.draw(step.plan)
            step.waited()
            step.choose(self._engine.choose(step.result, samplings), samplings)
        except BaseException as error:
            step.fail(error)
            raise

    def choose_by(self, choose: Callable[[], StepResult], step: StepInFlight, ahead: dict[int, TokenSampling]) -> None:
        """As ``choose``, by ``choose`` of a PreparedNext, which was given ``ahead``."""
        try:
            step.waited()
            step.choose(choose(), ahead)
        except BaseException as error:
            step.fail(error)
            raise
