"""Continuous batching: which sequences run in the next step, with how many tokens and which memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks import BlockManager, Reservation
from hybridge.runtime.blocks.records import INTERRUPTED, Records, changes
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.scheduler.capacity import Capacity
from hybridge.runtime.scheduler.plan import StepPlan
from hybridge.runtime.scheduler.queues import SequenceQueues
from hybridge.runtime.scheduler.request import ScheduledRequest
from hybridge.runtime.scheduler.sequence import ScheduledSequence, State
from hybridge.runtime.scheduler.settings import SchedulerSettings
from hybridge.runtime.scheduler.step_builder import StepBuilder
from hybridge.runtime.scheduler.step_planner import StepPlanner
from hybridge.runtime.scheduler.wait_estimate import steps_left, steps_until_free_row

_NO_DRAFT_TOKENS: Mapping[int, tuple[int, ...]] = MappingProxyType({})
NONE_ACCEPTED: Mapping[int, int] = MappingProxyType({})


class Scheduler:
    """Plans steps: ``plan``, then ``commit`` or ``fail``. Not thread-safe.

    Decoding sequences come first, one token each; prompts share the rest of the token budget, in chunks. When memory
    runs out, the last sequence in order is preempted, so that the first always makes progress. Requests may be added
    and cancelled at any time, also during a step.

    An exception in the middle of a change leaves ``records`` torn. After that nothing changes before ``start_over``.
    """

    def __init__(self, manager: BlockManager, settings: SchedulerSettings) -> None:
        """EngineError when the pools cannot hold one sequence of max_seq_len."""
        self.settings = settings
        self.manager = manager
        self.records = Records()
        self.capacity = Capacity(manager, settings)
        self._queues = SequenceQueues(manager, settings)
        self._planner = StepPlanner(manager, settings, self._queues)
        # Slot copies of forks since the last plan. The next plan copies first, because a source may have been freed.
        self._slot_copies: list[tuple[int, int]] = []
        self._forked: list[ScheduledSequence] = []
        self._builder: StepBuilder | None = None
        # The plan of the step in progress, and that of a committed step whose tokens are not known.
        self._plan: StepPlan | None = None
        self._unread: StepPlan | None = None
        # The builder of the last committed step.
        self._last: StepBuilder | None = None
        self._awaiting: list[ScheduledSequence] = []
        self._arrivals = self._step = 0

    @property
    def sequences(self) -> Mapping[int, ScheduledSequence]:
        """Unfinished sequences by id."""
        return self._queues.sequences

    @property
    def waiting(self) -> int:
        """Sequences without device memory."""
        return len(self._queues.waiting)

    @property
    def running(self) -> int:
        """Sequences with device memory."""
        return len(self._queues.running)

    @property
    def version(self) -> int:
        """Grows whenever a sequence is added, ends, or gets or loses device memory."""
        return self._queues.version

    def steps_until_free_row(self) -> int:
        """Steps until a request that arrives now gets a row, if all before it use their full token limits."""
        most, queues = self.settings.max_tokens, self._queues
        running = [steps_left(sequence, most) for sequence in queues.running]
        waiting = [steps_left(sequence, most) for sequence in queues.waiting]
        return steps_until_free_row(running, waiting, self.settings.max_rows)

    @property
    def host_bytes(self) -> int:
        """Host memory of the sequences that were swapped out."""
        return self._queues.host_bytes

    @property
    def settled(self) -> bool:
        """Whether no step is in progress and no fork waits for a copy of its state: free slots are really free."""
        return not self._slot_copies and self._builder is None

    def first_waiting(self) -> list[ScheduledSequence]:
        """Waiting sequences that may start with the next step."""
        return [sequence for sequence in self._queues.waiting[: self.manager.rows.free] if not sequence.memory.length]

    def check(self, request: ScheduledRequest) -> None:
        """RequestError when the pools could never hold the request."""
        self.capacity.check(request)

    @changes
    def add(self, request: ScheduledRequest) -> ScheduledSequence:
        """Queue the request; RequestError when the pools could never hold it."""
        self.check(request)
        rank = self.settings.policy.rank(request.priority, self._arrivals, self._step)
        self._arrivals += 1
        sequence = self._queues.make(request, list(request.prompt_ids), rank)
        self._queues.wait(sequence)
        return sequence

    @changes
    def fork(self, parent: ScheduledSequence) -> ScheduledSequence:
        """A second sequence with the tokens and, where memory allows, the memory of ``parent``; not during a step."""
        if self.records.torn is not None:
            raise EngineError(INTERRUPTED)
        assert self._builder is None and parent.state is not State.FINISHED
        child = self._queues.make(parent.request, parent.tokens.copy(), *parent.order[:2])
        child.cached_tokens, child.logits_from = parent.cached_tokens, parent.logits_from
        child.admitted_at = parent.admitted_at
        memory = None
        if parent.state is State.RUNNING:
            memory = self.manager.fork(parent.memory, child.tokens)
        if memory is None:
            self._queues.wait(child)
            return child
        child.memory = memory
        self._queues.run(child)
        if memory.slot != NONE:
            self._slot_copies.append((parent.memory.slot, memory.slot))
            self._forked.append(child)
        return child

    @changes
    def finish(self, sequence: ScheduledSequence) -> None:
        """End the sequence in any state; one in a running step ends with the step. Finished sequences are ignored."""
        if sequence.state is State.FINISHED or self.records.torn is not None:
            return
        step = self._builder
        if step is not None and (sequence in step.rows or sequence in step.admitted):
            sequence.cancelled = True
            step.cancelled.append(sequence)
            return
        self._queues.finish(sequence)

    def decoding(self) -> list[tuple[ScheduledSequence, int]]:
        """Sequences that decode, each with the number of draft tokens that fit into its row (none if below 1)."""
        most = self._planner.max_draft_tokens
        return [(sequence, most(sequence)) for sequence in self._queues.running if sequence.pending == 1]

    def plan(self, draft_tokens: Mapping[int, tuple[int, ...]] = _NO_DRAFT_TOKENS) -> StepPlan | None:
        """The next step with its memory reserved; None when there is nothing to do.

        ``draft_tokens``: draft tokens by decoding sequence; those that do not fit are dropped.
        """
        assert self._builder is None, "the previous step has been neither committed nor failed"
        # What ``changes`` does, here and in ``commit``: its call would take time in every step.
        try:
            last, self._last = self._last, None
            if last is not None and not draft_tokens:
                repeated = last.repeated(self._step + 1, self._queues.version)
                if repeated is not None:
                    self._step += 1
                    self._plan, self._builder = repeated, last
                    return repeated
            step = StepBuilder(Reservation(self.manager), self.settings.max_tokens, self.settings.prompt_logits)
            self._planner.fill(step, draft_tokens)
            self._step += 1
            plan = step.finish(self._step, self._slot_copies, self._forked)
            if plan is not None:
                self._plan, self._builder = plan, step
                self._slot_copies, self._forked = [], []
                if self._planner.repeats(step):
                    step.allow_repeats(plan, self._queues.version)
            return plan
        except BaseException as error:
            self.records.tear(error)
            raise

    def may_preempt(self) -> bool:
        """Whether the next step may preempt a sequence for the tokens of another running one."""
        return self._planner.may_preempt()

    def commit(
        self,
        plan: StepPlan,
        accepted: Mapping[int, int] = NONE_ACCEPTED,
        awaited: Iterable[ScheduledSequence] | None = None,
    ) -> None:
        """The step has run: record its tokens, of the draft tokens the first ``accepted`` of each sequence.

        awaited: where it still runs, the sequences that go on with a token that it chooses. The next plan feeds these
        tokens as if they were known. Call ``tokens_arrived`` when they are, or ``fail_committed``.
        """
        if self.records.torn is not None:
            return
        try:
            step = self._last = self._close()
            lost = step.lost() if step.cancelled else ()
            for sequence in lost:
                step.reservation.keep_length(sequence.memory)
            if plan.repeats:
                step.reservation.commit()
            else:
                step.reservation.commit({each.memory: accepted.get(each.id, 0) for each in step.draft_tokens})
                self._queues.settle_swaps(plan)
                for sequence, count in step.logits.items():
                    sequence.logits_from += count
                for id_ in plan.forked:
                    if id_ in self.sequences and self.sequences[id_].state is State.RUNNING:
                        self.manager.set_exact(self.sequences[id_].memory, True)
            for sequence in step.cancelled:
                if sequence.pending < 0 or sequence in lost:
                    self.manager.set_exact(sequence.memory, False)
                self.finish(sequence)
            self._unread = None if awaited is None else plan
            for sequence in awaited or ():
                sequence.awaits_token = sequence.state is not State.FINISHED
                if sequence.awaits_token:
                    self._awaiting.append(sequence)
        except BaseException as error:
            self.records.tear(error)
            raise

    @changes
    def tokens_arrived(self) -> None:
        """The awaited tokens are known; each sequence gets its own, or ends, before the next call."""
        for sequence in self._awaiting:
            sequence.awaits_token = False
        self._awaiting.clear()
        self._unread = None

    @changes
    def leave_out(self, plan: StepPlan, ended: Collection[int]) -> StepPlan:
        """``plan``, the step in progress, without the sequences ``ended``, whose memory it does not touch."""
        step = self._builder
        assert step is not None, "no step is in progress"
        return step.leave_out(plan, [each for each in step.rows if each.id in ended])

    @changes
    def leave_out_finished(self, plan: StepPlan) -> StepPlan:
        """``plan``, made but not launched, without rows of sequences that have ended since."""
        step = self._builder
        assert step is not None, "no step is planned"
        ended = [each for each in step.cancelled if each in step.rows and each not in step.admitted]
        left = step.leave_out(plan, ended)
        step.cancelled = [each for each in step.cancelled if each not in ended]
        for sequence in ended:
            self.finish(sequence)
        return left

    @changes
    def fail(self, plan: StepPlan) -> list[ScheduledSequence]:
        """The step failed: end and return the sequences in it; all others continue."""
        if self.records.torn is not None:
            return []
        step = self._close()
        step.reservation.release()
        died = list(dict.fromkeys([*step.rows, *step.admitted]))
        self._queues.settle_swaps(plan)
        for sequence in died:
            self.manager.set_exact(sequence.memory, False)
            self.finish(sequence)
        for id_ in plan.forked:
            forked = self.sequences.get(id_)
            if forked is not None and forked.state is State.RUNNING:
                # Whether its state was copied is unknown: it computes its tokens again.
                self._queues.wait_again(forked)
        return died

    @changes
    def fail_committed(self, plan: StepPlan) -> list[ScheduledSequence]:
        """The step failed after its commit: end and return its sequences. No other step is in progress.

        The prefix cache, which may have its states, keeps only what other sequences use.
        """
        if self.records.torn is not None:
            return []
        assert self._builder is None, "another step is in progress"
        self.tokens_arrived()
        known = self.sequences
        died = [known[row.sequence] for row in plan.rows if row.sequence in known]
        for sequence in died:
            self.manager.set_exact(sequence.memory, False)
            self.finish(sequence)
        self.manager.cache.clear()
        return died

    def abandon(self) -> list[ScheduledSequence]:
        """End and return the sequences of steps that an interrupt has left without ``commit``, ``fail`` or tokens."""
        died = [] if self._builder is None or self._plan is None else self.fail(self._plan)
        return died if self._unread is None else died + self.fail_committed(self._unread)

    def start_over(self) -> list[ScheduledSequence]:
        """End and return all sequences; all memory is free again, except that of pinned prefixes.

        No step may be in progress in the engine. ``records`` stay torn until the caller has emptied all else too: after
        an interrupt before that, it starts over again.
        """
        self.manager.start_over()
        ended = self._queues.start_over()
        self._slot_copies, self._forked, self._awaiting = [], [], []
        self._builder = self._plan = self._unread = self._last = None
        return ended

    def check_integrity(self) -> None:
        """PoolError unless every block, slot and host byte is owned by exactly the sequences that claim it."""
        memories = [sequence.memory for sequence in self.sequences.values()]
        owner = self.manager if self._builder is None else self._builder.reservation
        owner.check_integrity(memories)
        self._queues.check_integrity()

    def _close(self) -> StepBuilder:
        step, self._builder = self._builder, None
        assert step is not None, "no step is in progress"
        return step
