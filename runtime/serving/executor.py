"""Runs plans on an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from hybridge.runtime.scheduler import Scheduler, StepPlan, Swap
from hybridge.runtime.serving.packing import packed_inputs
from hybridge.runtime.serving.step_packer import StepPacker
from hybridge.runtime.serving.step_runner import StepRunner

Pair = tuple[int, int]


class StepExecutor:
    """Executes plans; independent of requests."""

    def __init__(
        self, engine: PagedEngine, manager: BlockManager, scheduler: Scheduler, runner: StepRunner | None = None
    ) -> None:
        self._engine, self._manager, self._scheduler, self._runner = engine, manager, scheduler, runner
        self._packer = StepPacker(scheduler.sequences, manager, engine)
        # The number of the last plan whose memory was prepared.
        self._prepared = 0

    def launch(self, plan: StepPlan, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult | None:
        """The result for the rows that sample, in their order (and padding after them); None without rows.

        samplings: as in ``PagedEngine.launch``. Exceptions of the engine propagate; the
        contents of the plan's memory are then undefined.
        """
        engine = self._engine
        if not plan.repeats:
            self._prepare(plan)
            if not plan.rows:
                return None
        runner = self._runner
        if runner is None:
            result = engine.launch(self._packer.pack(plan), samplings)
        else:
            # Fresh arrays: a runner may read them after the step.
            inputs = packed_inputs(plan, self._scheduler.sequences, self._manager, engine)
            result = runner.launch(engine, inputs, plan.rows, samplings)
        if plan.taken_slots:
            self._take_states(plan, result)
        return result

    def launch_next(self, result: StepResult, plan: StepPlan, feeding: Feeding) -> StepResult | None:
        """``PagedEngine.launch_next`` of ``plan``, the step after that of ``result``; exceptions as in ``launch``.

        None for a plan without rows or with swaps too. ``launch`` runs it then.
        """
        if not plan.rows or plan.swap_ins or plan.swap_outs:
            return None
        inputs = self._packer.pack_ahead(plan)
        self._prepare(plan)
        found = self._engine.launch_next(result, inputs, feeding)
        return None if found is None else self._launched_ahead(plan, inputs, found)

    @property
    def prepares_next(self) -> bool:
        """Whether there is ``prepare_next``."""
        return self._engine.prepares_next

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], plan: StepPlan, feeding: Feeding
    ) -> PreparedNext | None:
        """``PagedEngine.prepare_next`` of ``plan``; None for one that moves memory first, too."""
        if not plan.moves_nothing or not plan.num_rows:
            return None
        inputs = self._packer.pack_ahead(plan)
        prepared = self._engine.prepare_next(result, samplings, inputs, feeding)
        if prepared is None:
            return None
        launch = prepared.launch
        return PreparedNext(prepared.choose, lambda: self._launched_ahead(plan, inputs, launch()))

    def _launched_ahead(self, plan: StepPlan, inputs: PackedInputs, result: StepResult) -> StepResult:
        """``result``, of ``plan``, which has been launched behind the step before it."""
        self._packer.keep(plan, inputs)
        if plan.taken_slots:
            self._take_states(plan, result)
        return result

    def _take_states(self, plan: StepPlan, result: StepResult) -> None:
        """Copy the states that the prefix cache takes after the step of ``result``."""
        try:
            self._copy_states(plan.taken_slots, self._engine.pack_slots)
        except BaseException:
            # Nothing reads this step, but the next one must not begin before its end.
            with suppress(Exception):
                result.best_tokens()
            raise

    def _prepare(self, plan: StepPlan) -> None:
        """Prepare the memory from which the rows of the step start, once."""
        if plan.moves_nothing or plan.number == self._prepared:
            return
        self._prepared = plan.number
        engine = self._engine
        self._copy_slots(plan.slot_copies)
        for swap in plan.swap_outs:
            self._swap_out(swap)
        for swap in plan.swap_ins:
            copy = self._scheduler.sequences[swap.sequence].host_copy
            assert copy is not None, "a sequence is swapped in that was never swapped out"
            engine.swap_in(copy, swap.blocks, swap.slots)
        self._copy_states(plan.resumed_slots, engine.unpack_slots)
        if plan.zeroed_slots:
            engine.zero_slots(plan.zeroed_slots)
        for sources, targets in independent(plan.block_copies):
            engine.copy_blocks(sources, targets)

    def advance(self, plan: StepPlan, accepted: Mapping[int, int]) -> None:
        """Advance the states that the step deferred, by each row's own token and its ``accepted`` draft tokens.

        Exceptions of the engine propagate, as in ``launch``.
        """
        if self._manager.needs.state and accepted:
            counts = [1 + accepted[row.sequence] if row.draft_tokens else 0 for row in plan.rows]
            self._engine.advance(np.array(counts, np.int32))

    def _copy_states(self, pairs: Sequence[Pair], recode: Callable[[Sequence[int], Sequence[int]], None]) -> None:
        """Copy states between slots of rows and of the prefix cache, by ``recode`` if the cache packs its states."""
        if self._manager.packs_states and pairs:
            recode(*zip(*pairs, strict=True))
        else:
            self._copy_slots(pairs)

    def _copy_slots(self, pairs: Sequence[Pair]) -> None:
        for sources, targets in independent(pairs):
            self._engine.copy_slots(sources, targets)

    def _swap_out(self, swap: Swap) -> None:
        sequence = self._scheduler.sequences.get(swap.sequence)
        if sequence is None:
            return  # cancelled since the plan was made
        # Without a copy (host memory is short), the scheduler computes the sequence again.
        with suppress(EngineError):
            sequence.host_copy = self._engine.swap_out(swap.blocks, swap.slots)


def independent(pairs: Iterable[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    """Sources and targets of consecutive copies, split into runs that can be done at once.

    A run ends before a copy that reads or writes a target of the run, or writes one of its sources.
    """
    sources: list[int] = []
    targets: list[int] = []
    for source, target in pairs:
        if source in targets or target in targets or target in sources:
            yield sources, targets
            sources, targets = [], []
        sources.append(source)
        targets.append(target)
    if sources:
        yield sources, targets
