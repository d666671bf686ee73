"""Many requests on one paged engine, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from artifact.errors import EngineError
from runtime.blocks import BlockManager, CacheNeeds
from runtime.engines.paged import PagedEngine
from runtime.engines.step_result import StepResult
from runtime.prefix_cache.radix_allocator import RadixAllocator
from runtime.prefix_cache.settings import BLOCKS, RADIX
from runtime.sampling import Guess
from runtime.scheduler import PlannedRow, ScheduledSequence, Scheduler, SchedulerSettings, StepPlan
from runtime.scheduler.scheduler import NONE_ACCEPTED
from runtime.serving.beam import BeamGroup
from runtime.serving.candidate_outcome import NO_LOGITS, CandidateOutcome
from runtime.serving.executor import StepExecutor
from runtime.serving.group import Group, GroupContext, MakePiece, SamplingGroup
from runtime.serving.pools import PoolReport, ServingShape, memory_budget, pools_in
from runtime.serving.prefix_cache import ServedCache, cached_slots, radix_allocator
from runtime.serving.request import Output, ServingRequest
from runtime.serving.settings import ServingSettings
from runtime.serving.speculator import Speculator
from runtime.serving.step_under_way import StepTimes, StepUnderWay
from runtime.speculation import SpeculationMetrics, accepted_count
from runtime.text import Tokenizer


class ServingLoop:
    """Owns the pools of ``engine``: nobody else may step it. Not for use from several threads at once.

    Call ``step`` as long as it is ``busy``. ``pools`` says where the memory went; ``steps`` counts those that ran,
    ``last_plan`` is the plan of the last of them, and ``last_times`` what it took.

    With an engine that runs ahead, a step is under way whenever ``step`` returns, so that the device works while the
    pieces of the step before are made and read. ``settle`` ends it.
    """

    def __init__(
        self, engine: PagedEngine, settings: ServingSettings, eos: tuple[int, ...], tokenizer: Tokenizer | None
    ) -> None:
        """EngineError when the pools cannot hold one sequence, or the settings exceed the engine's limits."""
        self.shape = serving_shape(engine, settings)
        self.steps = 0
        self.last_plan: StepPlan | None = None
        self.last_times = StepTimes(0.0, 0.0)
        self._eos, self._tokenizer = eos, tokenizer
        needs = CacheNeeds.of_model(engine.config)
        cache = settings.cache
        cached = cache.kind == RADIX
        self._speculator: Speculator | None = None
        candidates = 0
        if settings.speculation is not None:
            self._speculator = Speculator(settings.speculation, engine)
            candidates = 0 if self._speculator.holds_states else settings.speculation.tokens
        memory, share = settings.memory_bytes, settings.memory_utilization
        budget = memory_budget(engine, needs, self.shape, memory, share, cached, candidates)
        self.pools: PoolReport = pools_in(
            engine, needs, self.shape, budget, cached_slots(cache, self.shape), candidates
        )
        sizes = self.pools.sizes
        engine.allocate_pools(sizes)
        shape = self.shape
        radix = radix_allocator(engine, sizes, needs, cache, shape.max_rows) if cached else None
        holds = self._speculator is not None and self._speculator.holds_states
        kept, blocks = None if holds else candidates, cache.kind == BLOCKS
        manager = BlockManager(sizes, needs, shape.max_rows, shape.max_seq_len, blocks, radix, kept)
        self.scheduler = Scheduler(
            manager,
            SchedulerSettings(
                shape.max_tokens,
                shape.max_rows,
                shape.max_seq_len,
                settings.policy,
                settings.swap_bytes,
                self.pools.block_bytes,
                self.pools.slot_bytes,
            ),
        )
        self.served_cache = None if radix is None else ServedCache(radix, engine, self.scheduler)
        runner = None if self._speculator is None else self._speculator.runner
        self._executor = StepExecutor(engine, manager, self.scheduler, runner)
        self._runs_ahead = engine.runs_ahead
        self._under_way: StepUnderWay | None = None
        # Tokens that were chosen, whose pieces are not made yet, and what has not been handed out.
        self._unmade: list[tuple[int, list[MakePiece]]] = []
        self._outputs: list[Output] = []
        self._groups: dict[int, Group] = {}
        self._request_of: dict[ScheduledSequence, int] = {}
        self._next_request = 0

    @property
    def prefix_cache(self) -> RadixAllocator | None:
        """The radix tree with its pools, events and metrics; None without one."""
        return None if self.served_cache is None else self.served_cache.cache

    @property
    def speculation(self) -> SpeculationMetrics | None:
        """What speculation did so far; None without it."""
        return None if self._speculator is None else self._speculator.metrics

    @property
    def busy(self) -> bool:
        """Whether any request has not ended, or not been told so."""
        return bool(self._groups or self._outputs or self._unmade or self._under_way)

    def has(self, request_id: int) -> bool:
        """Whether the request has not ended."""
        return request_id in self._groups

    def check(self, asked: ServingRequest) -> None:
        """RequestError when the pools could never hold the request; may be called from any thread."""
        self.scheduler.check(asked.scheduled())

    def add(self, asked: ServingRequest, started: float | None = None) -> int:
        """Let a request take part; its id. RequestError, at once, when the pools could never hold it.

        ``started``: time.perf_counter when it came, now by default.
        """
        id_ = self._next_request
        root = self.scheduler.add(asked.scheduled())
        self._next_request += 1
        self._request_of[root] = id_
        context = GroupContext(
            self._fork, self._finish, self._eos, self._tokenizer, time.perf_counter() if started is None else started
        )
        kind = BeamGroup if asked.request.params.beam_width else SamplingGroup
        self._groups[id_] = kind(asked, root, context)
        return id_

    def cancel(self, request_id: int) -> None:
        """End a request, of which nothing more is heard. One that has ended, or never was, is none to end."""
        self._end(request_id)
        if self._outputs or self._unmade:
            self._outputs = [output for output in self._outputs if output.request_id != request_id]
            self._unmade = [unmade for unmade in self._unmade if unmade[0] != request_id]
        if not self._groups:
            self.settle()

    def step(self, arrivals: Callable[[], object] | None = None) -> list[Output]:
        """Run one step; what the requests got from it, or the error that ended those who took part.

        ``arrivals`` is called right before steps are planned, when none is under way: it may add and cancel requests.
        """
        if self._under_way is None:
            self._launch(arrivals)
        self.settle(makes_pieces=False)
        if self._runs_ahead:
            self._launch(arrivals)
        self._make_pieces()
        outputs, self._outputs = self._outputs, []
        return outputs

    def settle(self, makes_pieces: bool = True) -> None:
        """End the step that is under way, if there is one; the next ``step`` gives what came of it."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        plan, result = under_way.plan, under_way.result
        sampling, accepted = under_way.sampling, NONE_ACCEPTED
        places: Sequence[int] = range(len(sampling))
        try:
            best = under_way.best_tokens()
            if result is not None and any(row.candidates for row in plan.rows):
                accepted, sampling, places = self._verify(plan, result, best)
                self._executor.advance(plan, accepted)
        except BaseException as error:
            self._fail(plan, error)
            return
        self.steps += 1
        self.last_plan = plan
        if self._speculator is not None:
            self._speculator.ran(plan)
        self.scheduler.commit(plan, accepted)
        if result is not None:
            self._accept(zip(sampling, places, strict=True), result, best)
        self.last_times = under_way.times()
        if self._speculator is not None:
            self._speculator.took(plan, self.last_times.host + self.last_times.device)
        if makes_pieces:
            self._make_pieces()

    def _launch(self, arrivals: Callable[[], object] | None) -> None:
        """Plan a step and set it under way, if there is anything to do."""
        began = time.perf_counter()
        if arrivals is not None:
            arrivals()
        if self.served_cache is not None:
            self.served_cache.restore()
        plan = self.scheduler.plan() if self._speculator is None else self.scheduler.plan(self._propose())
        if plan is None:
            assert not self._groups, "there are requests, but nothing that could be planned"
            return
        sequences = self.scheduler.sequences
        try:
            sampling = [sequences[row.sequence] for row in plan.rows if row.samples]
            result = self._executor.launch(plan)
        except BaseException as error:
            self._fail(plan, error)
            return
        self._under_way = StepUnderWay(plan, sampling, result, began)

    def _make_pieces(self) -> None:
        """Of all tokens that were chosen."""
        if not self._unmade:
            return
        unmade, self._unmade = self._unmade, []
        new, outputs = tuple.__new__, self._outputs  # as in Sequence.piece
        for id_, makers in unmade:
            for make in makers:
                outputs.append(new(Output, (id_, make(), None)))

    def _propose(self) -> dict[int, tuple[int, ...]]:
        """Candidates by sequence; nothing, and errors of the requests, where the drafter failed."""
        assert self._speculator is not None
        wanted = []
        for sequence in self.scheduler.decoding():
            asked = self._groups[self._request_of[sequence]].candidates
            if asked != 0:
                wanted.append((sequence, asked))
        try:
            return self._speculator.propose(wanted)
        except Exception as error:
            reason = error if isinstance(error, EngineError) else EngineError(f"the drafter failed: {error}")
            self._end_with(dict.fromkeys(self._request_of[sequence] for sequence, _ in wanted), reason)
            return {}

    def _verify(
        self, plan: StepPlan, result: StepResult, best: Sequence[int | None]
    ) -> tuple[dict[int, int], list[ScheduledSequence], list[int]]:
        """Give the sequences with candidates their tokens; how many of the candidates are accepted, by sequence.

        Then the sequences without, and the index in ``result`` of each.
        """
        assert self._speculator is not None
        accepted: dict[int, int] = {}
        others: list[ScheduledSequence] = []
        places: list[int] = []
        first = 0
        for row in plan.rows:
            if not row.samples:
                continue
            sequence = self.scheduler.sequences[row.sequence]
            if row.candidates:
                step = CandidateOutcome(result, best, first)
                accepted[row.sequence] = self._verify_row(sequence, row, step)
            else:
                others.append(sequence)
                places.append(first)
            first += 1 + len(row.candidates)
        return accepted, others, places

    def _verify_row(self, sequence: ScheduledSequence, row: PlannedRow, step: CandidateOutcome) -> int:
        """Give a sequence with candidates its tokens; how many of the candidates are accepted."""
        assert self._speculator is not None
        id_ = self._request_of[sequence]
        group = self._groups[id_]

        def choose(place: int, guess: Guess | None) -> int | None:
            logits, token = step.after(place, group.takes_best)
            self._outputs += [Output(id_, make()) for make in group.accept(sequence, logits, token, guess)]
            return None if sequence.cancelled else sequence.tokens[-1]

        try:
            accepted = accepted_count(self._speculator.proposal(sequence.id, len(row.candidates)), choose)
        except EngineError as error:
            self._end_with((id_,), error)
            # Each accepted token was appended.
            return len(sequence.tokens) - row.start - 1
        self._speculator.observe(sequence.id, len(row.candidates), accepted)
        if group.finished:
            del self._groups[id_]
        return accepted

    def _accept(
        self, sampling: Iterable[tuple[ScheduledSequence, int]], result: StepResult, best: Sequence[int | None]
    ) -> None:
        """Let each sequence choose its token, from the logits of its index, or end its request with an error."""
        request_of, groups, unmade = self._request_of, self._groups, self._unmade
        for sequence, index in sampling:
            id_ = request_of.get(sequence)
            if id_ is None:
                continue  # its request has ended in this very step
            group, token = groups[id_], best[index]
            try:
                logits = NO_LOGITS if group.takes_best and token is not None else result.logits(index)
                unmade.append((id_, group.accept(sequence, logits, token)))
            except EngineError as error:
                self._end_with((id_,), error)
                continue
            if group.finished:
                del groups[id_]

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """End the requests whose sequences took part; the scheduler has everything back that the step held.

        Raises what is no Exception.
        """
        reason = error if isinstance(error, EngineError) else EngineError(f"the engine failed in a step: {error}")
        if not isinstance(error, Exception):
            reason = EngineError("the step was interrupted")
        died = self.scheduler.fail(plan)
        # Some may have ended while their candidates were verified.
        requests = dict.fromkeys(self._request_of[sequence] for sequence in died if sequence in self._request_of)
        for sequence in died:
            self._forget(sequence)
        self._end_with(requests, reason)
        if not isinstance(error, Exception):
            raise error

    def _end_with(self, requests: Iterable[int], error: EngineError) -> None:
        """End requests, which get the pieces that they have so far, and then ``error``."""
        self._make_pieces()
        for id_ in requests:
            self._end(id_)
            self._outputs.append(Output(id_, error=error))

    def _end(self, request_id: int) -> None:
        group = self._groups.pop(request_id, None)
        if group is not None:
            for sequence in group.sequences:
                self._finish(sequence)

    def _fork(self, parent: ScheduledSequence) -> ScheduledSequence:
        child = self.scheduler.fork(parent)
        self._request_of[child] = self._request_of[parent]
        return child

    def _finish(self, sequence: ScheduledSequence) -> None:
        self._forget(sequence)
        self.scheduler.finish(sequence)

    def _forget(self, sequence: ScheduledSequence) -> None:
        self._request_of.pop(sequence, None)
        if self._speculator is not None:
            self._speculator.forget(sequence.id)


def serving_shape(engine: PagedEngine, settings: ServingSettings) -> ServingShape:
    """The settings with the engine's limits in place of None; EngineError for one beyond its limit."""
    limits, longest = engine.limits, engine.config.max_seq_len
    for name, value, limit in (
        ("max_rows", settings.max_rows, limits.max_rows),
        ("max_tokens", settings.max_tokens, limits.max_tokens),
        ("max_seq_len", settings.max_seq_len, longest),
    ):
        if value is not None and value > limit:
            raise EngineError(f"{name}: expected at most the engine's {limit}, found {value}")
    return ServingShape(
        settings.max_rows or limits.max_rows,
        settings.max_tokens or limits.max_tokens,
        settings.max_seq_len or longest,
        settings.block_size,
    )
