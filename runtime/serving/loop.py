"""Many requests on one paged engine, step by step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

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
from runtime.serving.group import Group, GroupContext, SamplingGroup
from runtime.serving.pools import PoolReport, ServingShape, memory_budget, pools_in
from runtime.serving.prefix_cache import ServedCache, cached_slots, radix_allocator
from runtime.serving.request import Output, ServingRequest
from runtime.serving.settings import ServingSettings
from runtime.serving.speculator import Speculator
from runtime.speculation import SpeculationMetrics, accepted_count
from runtime.text import Tokenizer


class ServingLoop:
    """Owns the pools of ``engine``: nobody else may step it. Not for use from several threads at once.

    Call ``step`` as long as it is ``busy``. ``pools`` says where the memory went; ``steps`` counts those that ran, and
    ``last_plan`` is the plan of the last of them.
    """

    def __init__(
        self, engine: PagedEngine, settings: ServingSettings, eos: tuple[int, ...], tokenizer: Tokenizer | None
    ) -> None:
        """EngineError when the pools cannot hold one sequence, or the settings exceed the engine's limits."""
        self.shape = serving_shape(engine, settings)
        self.steps = 0
        self.last_plan: StepPlan | None = None
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
        self._executor = StepExecutor(engine, manager, self.scheduler)
        self._groups: dict[int, Group] = {}
        self._request_of: dict[ScheduledSequence, int] = {}
        self._next_request = 0

    @property
    def engine_seconds(self) -> float:
        """Time spent on the engine's steps so far."""
        return self._executor.engine_seconds

    @property
    def launch_seconds(self) -> float:
        """What of ``engine_seconds`` went by before the engine left the rest to its device."""
        return self._executor.launch_seconds

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
        """Whether any request has not ended."""
        return bool(self._groups)

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
        group = self._groups.pop(request_id, None)
        if group is not None:
            for sequence in group.sequences:
                self._finish(sequence)

    def step(self) -> list[Output]:
        """Run one step; what the requests got from it, or the error that ended those who took part."""
        began = time.perf_counter()
        if self.served_cache is not None:
            self.served_cache.restore()
        outputs: list[Output] = []
        plan = self.scheduler.plan() if self._speculator is None else self.scheduler.plan(self._propose(outputs))
        if plan is None:
            assert not self._groups, "there are requests, but nothing that could be planned"
            return outputs
        sampling = [self.scheduler.sequences[row.sequence] for row in plan.rows if row.samples]
        try:
            result = self._executor.run(plan)
            best = [] if result is None else self._executor.best_tokens(result)
            accepted: Mapping[int, int] = NONE_ACCEPTED
            places: Sequence[int] = range(len(sampling))
            if result is not None and any(row.candidates for row in plan.rows):
                accepted, sampling, places = self._verify(plan, result, best, outputs)
                self._executor.advance(plan, accepted)
        except Exception as error:
            return self._failed(plan, error)
        except BaseException:
            self._failed(plan, EngineError("the step was interrupted"))
            raise
        self.steps += 1
        self.last_plan = plan
        if self._speculator is not None:
            self._speculator.ran(plan)
        self.scheduler.commit(plan, accepted)
        if result is not None:
            self._accept(zip(sampling, places, strict=True), result, best, outputs)
        if self._speculator is not None:
            self._speculator.took(plan, time.perf_counter() - began)
        return outputs

    def _propose(self, outputs: list[Output]) -> dict[int, tuple[int, ...]]:
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
            for id_ in dict.fromkeys(self._request_of[sequence] for sequence, _ in wanted):
                self.cancel(id_)
                outputs.append(Output(id_, error=reason))
            return {}

    def _verify(
        self, plan: StepPlan, result: StepResult, best: Sequence[int | None], outputs: list[Output]
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
                accepted[row.sequence] = self._verify_row(sequence, row, step, outputs)
            else:
                others.append(sequence)
                places.append(first)
            first += 1 + len(row.candidates)
        return accepted, others, places

    def _verify_row(
        self, sequence: ScheduledSequence, row: PlannedRow, step: CandidateOutcome, outputs: list[Output]
    ) -> int:
        """Give a sequence with candidates its tokens; how many of the candidates are accepted."""
        assert self._speculator is not None
        id_ = self._request_of[sequence]
        group = self._groups[id_]

        def choose(place: int, guess: Guess | None) -> int | None:
            logits, token = step.after(place, group.takes_best)
            outputs.extend(Output(id_, piece) for piece in group.accept(sequence, logits, token, guess))
            return None if sequence.cancelled else sequence.tokens[-1]

        try:
            accepted = accepted_count(self._speculator.proposal(sequence.id, len(row.candidates)), choose)
        except EngineError as error:
            self.cancel(id_)
            outputs.append(Output(id_, None, error))
            # Each accepted token was appended.
            return len(sequence.tokens) - row.start - 1
        self._speculator.observe(sequence.id, len(row.candidates), accepted)
        if group.finished:
            del self._groups[id_]
        return accepted

    def _accept(
        self,
        sampling: Iterable[tuple[ScheduledSequence, int]],
        result: StepResult,
        best: Sequence[int | None],
        outputs: list[Output],
    ) -> None:
        """Give each sequence its logits, by their index; add the pieces, or the error that ends its request."""
        new = tuple.__new__  # as in Sequence.accept
        for sequence, index in sampling:
            id_ = self._request_of.get(sequence)
            if id_ is None:
                continue  # its request has ended in this very step
            group, token = self._groups[id_], best[index]
            try:
                logits = NO_LOGITS if group.takes_best and token is not None else result.logits(index)
                pieces = group.accept(sequence, logits, token)
            except EngineError as error:
                self.cancel(id_)
                outputs.append(Output(id_, None, error))
                continue
            for piece in pieces:
                outputs.append(new(Output, (id_, piece, None)))
            if group.finished:
                del self._groups[id_]

    def _failed(self, plan: StepPlan, error: Exception) -> list[Output]:
        """End the requests whose sequences took part; the scheduler has everything back that the step held."""
        reason = error if isinstance(error, EngineError) else EngineError(f"the engine failed in a step: {error}")
        died = self.scheduler.fail(plan)
        # Some may have ended while their candidates were verified.
        requests = dict.fromkeys(self._request_of[sequence] for sequence in died if sequence in self._request_of)
        for sequence in died:
            self._forget(sequence)
        for id_ in requests:
            self.cancel(id_)
        return [Output(id_, error=reason) for id_ in requests]

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
