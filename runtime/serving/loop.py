"""Serving loop: many requests on one engine, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.paged import Feeding, PagedEngine
from hybridge.runtime.generation import ANY_TOKEN
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, Sampler, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan
from hybridge.runtime.scheduler.scheduler import NONE_ACCEPTED
from hybridge.runtime.serving.draft_check import DraftCheck
from hybridge.runtime.serving.executor import StepExecutor
from hybridge.runtime.serving.live_requests import LiveRequests, engine_error
from hybridge.runtime.serving.loop_memory import loop_memory
from hybridge.runtime.serving.pools import serving_shape
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.serving.step_in_flight import NextRows, NextStep, StepInFlight, StepTimes, sampled_rows
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
    of the same rows is launched before the tokens of the one before it have been read.
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
        forget, forked = (speculator.forget, speculator.forked) if speculator else (_noop,) * 2
        self._requests = requests = LiveRequests(self.scheduler, eos, tokenizer, forget, forked)
        self._speculator = speculator
        self._hidden = engine.show_hidden_states(0) if settings.hidden_states else None
        self._draft_check = DraftCheck(speculator, self.scheduler, requests) if speculator else None
        runner = speculator.runner if speculator else None
        self._executor = StepExecutor(engine, memory.manager, self.scheduler, runner)
        self._runs_ahead, self._samples_in_steps = engine.runs_ahead, engine.samples_in_steps
        self._samples_after_steps = engine.samples_after_steps and runner is None
        self._engine = engine
        self._chains_steps = engine.chains_steps and speculator is None
        # Sequences that get a token from the last planned step, and samplers of some of them by index of their logits.
        self._sampling: list[ScheduledSequence] = []
        self._samplers: Mapping[int, Sampler] = {}
        # Those of sequences of ``_sampling`` whose tokens wait for masks.
        self._masked: list[Sampler] = []
        self._preparations: list[Callable[[], object]] = []
        self._vocab = engine.config.vocab_size
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
        return self._requests.add(submitted, time.perf_counter() if started is None else started)

    def cancel(self, request_id: int) -> None:
        """End a request without further output. Finished or unknown ids are ignored."""
        self._requests.cancel(request_id)
        if not self._requests:
            self.settle()

    def step(self, arrivals: Callable[[], object] | None = None) -> list[Output]:
        """Run one step; returns the output of its requests, or the error that ended them.

        ``arrivals`` is called right before a step is launched, perhaps while another one runs; it may add and cancel
        requests, and settle.
        """
        if self._in_flight is None:
            self._launch(arrivals)
            self._choose()
        next_rows = self._next_rows()
        if arrivals is not None and next_rows is not None:
            # Requests that arrive during a chained step wait for the one after it.
            arrivals()
            arrivals = None
        try:
            self._settle(None if next_rows is None else self._launch_next(next_rows))
            if self._runs_ahead and self._in_flight is None:
                self._launch(arrivals)
        finally:
            # Also after an interrupt: make pieces of the tokens chosen last.
            self._requests.make_pieces()
        # Masks of allowed tokens are computed in another thread until here, while the step runs.
        self._choose()
        if self._speculator is not None:
            self._speculator.update_cost_model()
        return self._requests.take()

    def settle(self) -> None:
        """Wait for the step in progress, if there is one; the next ``step`` returns its output."""
        if self._in_flight is not None:
            self._settle()
            self._requests.make_pieces()

    def _settle(self, next_step: NextStep | None = None) -> None:
        """Wait for the step in progress, if there is one; ``next_step``, launched after it, is in progress then."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            return
        plan, result, is_plain = in_flight.plan, in_flight.result, in_flight.plan.is_plain
        accepted = NONE_ACCEPTED
        chosen = sampled_rows(plan, in_flight.sampling)
        try:
            best = in_flight.best_tokens()
            drafted = not is_plain and any(row.draft_tokens for row in plan.rows)
            if self._draft_check is not None and result is not None and drafted:
                chosen, accepted = self._draft_check.verdict(in_flight, result, best)
                self._executor.advance(plan, accepted)
        except BaseException as error:
            self._fail(plan, error)
            return
        self.steps += 1
        self.last_plan = plan
        try:
            if self._speculator is not None:
                self._speculator.record_step(plan, in_flight.sampling, accepted)
            self.scheduler.commit(plan, accepted)
            if next_step is not None and result is not None:
                self._follow(in_flight, next_step, result.fed_tokens())
            if result is not None:
                if self._hidden is not None:
                    self._requests.read_hidden(plan, self._hidden)
                if not is_plain:
                    self._requests.read_prompts(plan, result)
                self._requests.accept(chosen, result, best, in_flight.samplings)
                # All sequences have their tokens: the next masks may be computed.
                self._prepare_masks()
        except BaseException as error:
            self._end_committed(plan, error, next_step is not None)
        in_flight.end(device_waits=next_step is None)
        self._ended = in_flight
        seconds = in_flight.seconds
        self._step_seconds += _NEWEST_STEP * (seconds - self._step_seconds)
        if self._speculator is not None:
            self._speculator.record_time(plan, seconds)

    def _next_rows(self) -> NextRows | None:
        """How the rows of the step in progress continue in the next one; None if that depends on the tokens that are
        sampled now."""
        in_flight = self._in_flight
        if not self._chains_steps or in_flight is None or in_flight.result is None:
            return None
        # The commit of a prompt may publish its blocks, which then have to be copied before they are written.
        if not (in_flight.plan.is_plain and self.scheduler.may_continue):
            return None
        stops = self._requests.next_stops(in_flight.sampling)
        following = {index: how.following() for index, how in in_flight.samplings.items()}
        samplings = {index: how for index, how in following.items() if how is not None}
        if stops is None or len(samplings) < len(following):
            return None
        ended = [row for row, ids in enumerate(stops) if ids is ANY_TOKEN]
        return None if len(ended) == len(stops) else NextRows(in_flight, Feeding(stops, samplings), ended)

    def _launch_next(self, rows: NextRows) -> NextStep | None:
        """Launch the step of ``rows``, if it still follows and the engine can."""
        in_flight = rows.before
        # Requests may have been added or cancelled.
        plan = None if self._in_flight is not in_flight else self.scheduler.next_plan()
        if plan is None:
            return None
        assert in_flight.result is not None
        try:
            result = self._executor.launch_next(in_flight.result, plan, rows.feeding, rows.ended)
        except BaseException as error:
            self._in_flight = None
            # The result of the step before it is not read, but that step must end before another one begins.
            with suppress(Exception):
                in_flight.result.best_tokens()
            self._fail(in_flight.plan, error)
            return None
        if result is None:
            self.scheduler.drop_next_plan()
            return None
        return NextStep(plan, result, rows.feeding)

    def _follow(self, in_flight: StepInFlight, next_step: NextStep, fed: Sequence[int]) -> None:
        """Make ``next_step`` the step in progress. It feeds ``fed``, except tokens that end their sequences."""
        rows = zip(in_flight.sampling, fed, next_step.feeding.stops, strict=False)
        ended = {sequence.id for sequence, token, stops in rows if token < 0 or token in stops or stops is ANY_TOKEN}
        plan = self.scheduler.follow(next_step.plan, ended)
        self._in_flight = StepInFlight(
            plan, in_flight.sampling, next_step.result, next_step.feeding.samplings, time.perf_counter()
        )

    def _launch(self, arrivals: Callable[[], object] | None) -> None:
        """Plan and launch a step, if there is anything to do."""
        began = time.perf_counter()
        if arrivals is not None:
            arrivals()
        if self.served_cache is not None and self.served_cache.host is not None:
            self.served_cache.restore()
        plan = self.scheduler.plan() if self._draft_check is None else self.scheduler.plan(self._draft_check.propose())
        if plan is None:
            assert not self._requests, "there are requests, but nothing that could be planned"
            return
        try:
            if not plan.repeats:
                sequences = self.scheduler.sequences
                self._sampling = [sequences[row.sequence] for row in plan.rows if row.samples]
                self._samplers = self._requests.samplers(sampled_rows(plan, self._sampling))
                self._masked = self._requests.masked_samplers(self._sampling)
            if self._samples_after_steps:
                samplings = NO_SAMPLING
            else:
                samplings = CHOSEN_LATER if self._masked and self._engine.chooses_later else self._draw(plan)
            result = self._executor.launch(plan, samplings)
            if not plan.repeats:
                found = [sampler.mask_preparation() for sampler in self._masked]
                self._preparations = [prepare for prepare in found if prepare is not None]
                self._prepare_masks()
            if self._samples_after_steps:
                # Masks of allowed tokens are computed in another thread until here.
                samplings = self._draw(plan)
        except BaseException as error:
            self._fail(plan, error)
            return
        self._in_flight = StepInFlight(plan, self._sampling, result, samplings, began)

    def _draw(self, plan: StepPlan) -> Mapping[int, TokenSampling]:
        """How to choose the tokens of the step, by index."""
        found = {index: sampler.draw(self._vocab) for index, sampler in self._samplers.items()}
        if self._draft_check is not None and self._samples_in_steps and not plan.is_plain:
            found |= self._draft_check.samplings(plan, self._sampling, self._vocab)
        return found

    def _prepare_masks(self) -> None:
        """Let the masks of the next tokens be computed in another thread."""
        for prepare in self._preparations:
            with suppress(Exception):
                prepare()

    def _choose(self) -> None:
        """Choose the tokens of the step in progress, if it was launched before the masks of its rows were known."""
        in_flight = self._in_flight
        if in_flight is None or in_flight.result is None or in_flight.samplings is not CHOSEN_LATER:
            return
        try:
            samplings = self._draw(in_flight.plan)
            in_flight.waited()
            in_flight.choose(self._engine.choose(in_flight.result, samplings), samplings)
        except BaseException as error:
            self._in_flight = None
            with suppress(Exception):
                in_flight.result.best_tokens()
            self._fail(in_flight.plan, error)

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """End the requests of the step; the scheduler gets back all memory that the step reserved.

        Re-raises anything that is not an Exception.
        """
        reason = engine_error(error, "the engine failed in a step")
        if not isinstance(error, Exception):
            reason = EngineError("the step was interrupted")
        self._requests.died(self.scheduler.fail(plan), reason)
        if not isinstance(error, Exception):
            raise error

    def _end_committed(self, plan: StepPlan, error: BaseException, launched_next: bool) -> None:
        """End the requests of a committed step in which an error left some sequence without its token.

        Their states are one token ahead of their text, or more if the next step has been launched, so they cannot
        continue. Re-raises anything that is not an Exception.
        """
        known = self.scheduler.sequences
        sequences = [known[row.sequence] for row in plan.rows if row.sequence in known]
        if launched_next:
            for sequence in sequences:
                self.scheduler.manager.set_exact(sequence.memory, False)
        reason = engine_error(error, "a token could not be chosen")
        if not isinstance(error, Exception):
            reason = EngineError("the step was interrupted")
        self._requests.end_with(self._requests.ids_of(sequences), reason)
        if not isinstance(error, Exception):
            raise error


def _noop(*sequences: int) -> None:
    """For loops without speculation, where no drafter tracks the sequences."""
