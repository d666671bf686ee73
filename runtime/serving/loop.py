"""Serving loop: many requests on one engine, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hybridge.artifact.errors import RequestError
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.sampling import NO_SAMPLING
from hybridge.runtime.scheduler import StepPlan
from hybridge.runtime.scheduler.scheduler import NONE_ACCEPTED
from hybridge.runtime.serving.draft_check import DraftCheck
from hybridge.runtime.serving.executor import StepExecutor
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.loop_memory import loop_memory
from hybridge.runtime.serving.pools import serving_shape
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.serving.step_ahead import Continuations, StepAhead
from hybridge.runtime.serving.step_failures import StepFailures
from hybridge.runtime.serving.step_in_flight import NextStep, StepInFlight, StepTimes, sampled_rows
from hybridge.runtime.serving.token_choice import TokenChoice
from hybridge.runtime.speculation import SpeculationMetrics
from hybridge.runtime.text import Tokenizer

if TYPE_CHECKING:
    from hybridge.runtime.prefix_cache.radix_cache import RadixCache

# Weight of the latest step in the mean time of a step.
_NEWEST_STEP = 0.1


class ServingLoop:
    """Owns the pools of ``engine``, which nothing else may step. Not thread-safe.

    Call ``step`` as long as it is ``busy``. ``pools`` reports memory use, ``steps`` the number of steps run,
    ``last_plan`` the plan of the last step and ``last_times`` its times.

    With an engine that runs ahead, a step is in progress whenever ``step`` returns, so that the device works while the
    output of the previous step is prepared and read. ``settle`` waits for it. If the engine also chains steps, a step
    is launched before the tokens of the one before it have been read.
    """

    def __init__(
        self, engine: PagedEngine, settings: ServingSettings, eos: tuple[int, ...], tokenizer: Tokenizer | None
    ) -> None:
        """EngineError when the pools cannot hold one sequence, or the settings exceed the engine's limits."""
        self.shape = serving_shape(engine, settings)
        self.steps = 0
        self.last_plan: StepPlan | None = None
        if settings.ring_rows is not None:
            engine.use_state_rings(settings.ring_rows)
        rows, speculation = self.shape.max_rows, settings.speculation
        speculator = None if speculation is None else Speculator(speculation, engine, rows)
        memory = loop_memory(engine, settings, self.shape)
        self.pools, self.scheduler, self.served_cache = memory.pools, memory.scheduler, memory.cache
        self._records = memory.scheduler.records
        forget, forked = (speculator.forget, speculator.forked) if speculator else (_noop,) * 2
        self._requests = requests = LiveRequests(self.scheduler, eos, tokenizer, forget, forked)
        self._speculator = speculator
        self._hidden = engine.show_hidden_states(0) if settings.hidden_states else None
        self._draft_check = DraftCheck(speculator, self.scheduler, requests) if speculator else None
        runner = speculator.runner if speculator else None
        self._executor = StepExecutor(engine, memory.manager, self.scheduler, runner)
        self._runs_ahead, self._chooses_later = engine.runs_ahead, engine.chooses_later
        self._samples_after_steps = engine.samples_after_steps and runner is None
        self._choice = TokenChoice(engine, requests, self._draft_check)
        self._failures = StepFailures(self.scheduler, requests)
        chains = engine.chains_steps and speculator is None and self._hidden is None
        parts = self.scheduler, requests, self._executor, self.served_cache, self._choice
        self._ahead = StepAhead(*parts) if chains else None
        self._in_flight: StepInFlight | None = None
        self._ended: StepInFlight | None = None
        self._step_seconds = 0.0

    @property
    def prefix_cache(self) -> RadixCache | None:
        """The radix tree with its pools, events and metrics; None without one."""
        return None if self.served_cache is None else self.served_cache.cache

    @property
    def speculation(self) -> SpeculationMetrics | None:
        """Counters of speculation; None without it."""
        return None if self._speculator is None else self._speculator.metrics

    @property
    def last_times(self) -> StepTimes:
        """The times of the last step; zeros before the first."""
        return StepTimes(0.0, 0.0) if self._ended is None else self._ended.times

    @property
    def runs_ahead(self) -> bool:
        """Whether the engine's device works while the host does other things."""
        return self._runs_ahead

    @property
    def step_seconds(self) -> float:
        """The mean time of the latest steps."""
        return self._step_seconds

    @property
    def seconds_until_free_row(self) -> float:
        """An upper bound of the time until a request that arrives now gets a row, from the latest steps."""
        return self.scheduler.steps_until_free_row() * self._step_seconds

    @property
    def busy(self) -> bool:
        """Whether a request is running or has pending output."""
        return bool(self._requests or self._requests.has_pending_output or self._in_flight)

    def has(self, request_id: int) -> bool:
        """Whether the request has not ended."""
        return request_id in self._requests

    def check(self, submitted: ServingRequest) -> None:
        """RequestError when the request could never be served; may be called from any thread."""
        if submitted.pooling is not None and self._hidden is None:
            raise RequestError("pooling: expected ServingSettings with hidden_states, found none: set them")
        self.scheduler.check(submitted.scheduled())

    def add(self, submitted: ServingRequest, started: float | None = None) -> int:
        """Add a request; returns its id. RequestError when the pools could never hold it.

        ``started``: its arrival by time.perf_counter, by default now.
        """
        started = time.perf_counter() if started is None else started
        if self._records.torn is not None:
            self._start_over()
        try:
            return self._requests.add(submitted, started)
        finally:
            if self._records.torn is not None:
                self._start_over()

    def cancel(self, request_id: int) -> None:
        """End a request without further output. Finished or unknown ids are ignored."""
        try:
            self._requests.cancel(request_id)
        finally:
            if not self._requests or self._records.torn is not None:
                self.settle()

    def step(self, arrivals: Callable[[], object] | None = None) -> list[Output]:
        """Run one step; returns the output of its requests, or the error that ended them.

        ``arrivals`` is called right before a step is launched, perhaps while another one runs; it may add and cancel
        requests, and settle.
        """
        outputs: list[Output] = []
        try:
            outputs = self._step(arrivals)
            if self._records.torn is None:
                return outputs
        except BaseException as error:
            if self._records.torn is None:
                if self._in_flight is None:
                    self._failures.end_interrupted()
                raise
            if not isinstance(error, Exception):
                self._start_over()
                raise
        self._start_over()
        return outputs + self._requests.take()

    def _step(self, arrivals: Callable[[], object] | None) -> list[Output]:
        if self._in_flight is None:
            self._launch(arrivals)
        before, next_step = self._in_flight, None
        continuations = None
        if self._ahead is not None and before is not None:
            continuations = self._ahead.continuations(before)
        if continuations is not None:
            if arrivals is not None:
                # Requests that arrive during a chained step wait for the one after it.
                arrivals()
                arrivals = None
            try:
                next_step = self._launch_next(continuations)
            except BaseException:
                if self._records.torn is None:
                    # The step in progress may still read memory that its failed sequences have left.
                    self.settle()
                raise
        if self._chooses_later:
            # Masks of allowed tokens are computed in another thread until here, while the step runs.
            self._choose()
        try:
            planned = self._settle(next_step)
            if self._runs_ahead and self._in_flight is None:
                self._launch(arrivals, planned)
        finally:
            # Also after an interrupt: make pieces of the tokens chosen last.
            self._requests.make_pieces()
        if self._chooses_later and self._ahead is None:
            # Or else after the step behind it has been planned.
            self._choose()
        if self._speculator is not None and self._speculator.unobserved is not None:
            self._speculator.update_cost_model()
        return self._requests.take()

    def settle(self) -> None:
        """Wait for the step in progress, if there is one; the next ``step`` returns its output."""
        if self._in_flight is not None:
            self._choose()
            self._settle()
            self._requests.make_pieces()
        if self._records.torn is not None:
            self._start_over()

    def _start_over(self) -> None:
        """The records are torn: end all requests, and empty the prefix cache except for pinned prefixes."""
        if self._in_flight is not None:
            # It must end before its memory is used again.
            with suppress(Exception):
                self._in_flight.best_tokens()
            self._in_flight = None
        self._failures.end_torn()
        if self._speculator is not None:
            self._speculator.start_over()
        if self.served_cache is not None:
            self.served_cache.start_over()
        self._records.torn = None

    def _settle(self, next_step: NextStep | None = None) -> NextStep | None:
        """Wait for the step in progress, if there is one. ``next_step`` is in progress then if it has been launched;
        returns it if it still has to be."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            return None
        plan, result = in_flight.plan, in_flight.result
        is_plain = plan.repeats or plan.is_plain
        accepted = NONE_ACCEPTED
        chosen = sampled_rows(plan, in_flight.sampling)
        try:
            best = in_flight.best_tokens()
            drafted = not is_plain and any(row.draft_tokens for row in plan.rows)
            if self._draft_check is not None and result is not None and drafted:
                chosen, accepted = self._draft_check.verdict(in_flight, result, best)
                self._executor.advance(plan, accepted)
        except BaseException as error:
            if in_flight.committed:
                self._failures.end_committed(plan, next_step, error)
            else:
                self._failures.end(plan, error)
            return None
        self.steps += 1
        self.last_plan = plan
        try:
            if in_flight.committed:
                self.scheduler.tokens_arrived()
            else:
                self.scheduler.commit(plan, accepted)
            if next_step is not None and next_step.result is not None and result is not None:
                self._follow(in_flight, next_step, result.fed_tokens())
            if result is not None:
                if self._hidden is not None:
                    self._requests.read_hidden(plan, self._hidden)
                if not is_plain:
                    self._requests.read_prompts(plan, result)
                self._requests.accept(chosen, result, best, in_flight.samplings)
                if not self._chooses_later or (self._in_flight is not None and self._in_flight.waits_for_choice):
                    # All sequences have their tokens: the next masks may be computed, of a device behind the launch.
                    self._choice.masks.prepare()
        except BaseException as error:
            self._failures.end_without_tokens(plan, next_step, error, next_runs=self._in_flight is not None)
        in_flight.end(device_waits=next_step is None or next_step.result is None)
        self._ended = in_flight
        seconds = in_flight.seconds
        self._step_seconds += _NEWEST_STEP * (seconds - self._step_seconds)
        if self._speculator is not None:
            self._speculator.record_step(plan, in_flight.sampling, accepted, seconds)
        return None if next_step is None or next_step.result is not None else next_step

    def _launch_next(self, continuations: Continuations) -> NextStep | None:
        """Plan the step after the one in progress, if there is anything to do, and launch it if the engine can."""
        before = self._in_flight
        if self._ahead is None or before is None:
            return None  # arrivals have waited for it
        plan = self._ahead.plan(before, continuations)
        if plan is None:
            return None
        try:
            return self._ahead.launch(before, plan, continuations)
        except BaseException as error:
            self._failures.end(plan, error)
            return None

    def _choose(self) -> None:
        """Choose the tokens of the step in progress, if it was launched before the masks of its rows were known."""
        if self._in_flight is None or not self._in_flight.waits_for_choice:
            return
        try:
            self._choice.choose(self._in_flight)
        except BaseException:
            self._settle()

    def _follow(self, before: StepInFlight, next_step: NextStep, fed: Sequence[int]) -> None:
        """Make ``next_step`` the step in progress. It feeds ``fed``, except tokens that end their sequences."""
        plan = self.scheduler.leave_out(next_step.plan, next_step.ended(fed))
        if not plan.repeats:
            self._choice.of(plan, next_step.sampling)
            self._choice.masks.find_preparations()
        self._in_flight = StepInFlight(
            plan, next_step.sampling, next_step.result, next_step.samplings, time.perf_counter()
        )

    def _launch(self, arrivals: Callable[[], object] | None, planned: NextStep | None = None) -> None:
        """Launch a step, if there is anything to do: ``planned``, or one that is planned now."""
        began, choice = time.perf_counter(), self._choice
        if self._records.torn is not None:
            self._start_over()
            planned = None
        elif planned is None:
            self._failures.end_interrupted()
        plan = self._plan(arrivals) if planned is None else self.scheduler.leave_out_finished(planned.plan)
        if plan is None:
            assert not self._requests, "there are requests, but nothing that could be planned"
            return
        try:
            if not plan.repeats:
                sequences = self.scheduler.sequences
                choice.of(plan, [sequences[row.sequence] for row in plan.rows if row.samples])
            samplings = NO_SAMPLING if self._samples_after_steps else choice.at_launch(plan)
            result = self._executor.launch(plan, samplings)
            if not plan.repeats:
                choice.masks.find_preparations()
            if self._chooses_later or not plan.repeats:
                # Not before the launch, which other threads would delay.
                choice.masks.prepare()
            if self._samples_after_steps:
                # Masks of allowed tokens are computed in another thread until here.
                samplings = choice.draw(plan)
        except BaseException as error:
            self._failures.end(plan, error)
            return
        self._in_flight = StepInFlight(plan, choice.sampling, result, samplings, began)

    def _plan(self, arrivals: Callable[[], object] | None) -> StepPlan | None:
        """The next step; None if there is nothing to do."""
        if arrivals is not None:
            arrivals()
        if self.served_cache is not None and self.served_cache.host is not None:
            self.served_cache.restore()
        return self.scheduler.plan() if self._draft_check is None else self.scheduler.plan(self._draft_check.propose())


def _noop(*sequences: int) -> None:
    """For loops without speculation, where no drafter tracks the sequences."""
