"""Continuous batching: which sequences take part in the next step, with how many tokens and in whose memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from types import MappingProxyType

from runtime.blocks import BlockManager
from runtime.blocks.sequence_memory import NONE
from runtime.scheduler.capacity import Capacity
from runtime.scheduler.draft import Draft
from runtime.scheduler.plan import StepPlan, Swap
from runtime.scheduler.request import ScheduledRequest
from runtime.scheduler.sequence import ScheduledSequence, State
from runtime.scheduler.settings import SchedulerSettings

_NO_CANDIDATES: Mapping[int, tuple[int, ...]] = MappingProxyType({})
NONE_ACCEPTED: Mapping[int, int] = MappingProxyType({})


def _order(sequence: ScheduledSequence) -> tuple[int, int, int]:
    return sequence.order


class Scheduler:
    """Plans step after step: ``plan``, then ``commit`` or ``fail`` of that plan. Not for several threads at once.

    Rows that decode come first, one token each; prompts share what is left of the budget, in chunks. When memory runs
    out, the last in order loses its own, so that the first always advances. Requests may come and be cancelled at any
    time, also while a plan is under way.
    """

    def __init__(self, manager: BlockManager, settings: SchedulerSettings) -> None:
        """EngineError when the pools cannot hold one sequence of max_seq_len."""
        self.settings = settings
        self.sequences: dict[int, ScheduledSequence] = {}
        self.manager = manager
        self.capacity = Capacity(manager, settings)
        self._spare = int(settings.watermark * manager.pool.num_blocks)
        self._waiting: list[ScheduledSequence] = []
        self._running: list[ScheduledSequence] = []
        # Of forks since the last plan. A source may be free again: the next plan copies before it does anything else.
        self._slot_copies: list[tuple[int, int]] = []
        self._forked: list[ScheduledSequence] = []
        self._draft: Draft | None = None
        self._host_bytes = self._arrivals = self._step = self._next_id = 0

    @property
    def waiting(self) -> int:
        """Sequences without device memory."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences with device memory."""
        return len(self._running)

    @property
    def host_bytes(self) -> int:
        """Host memory of the sequences that were swapped out."""
        return self._host_bytes

    @property
    def settled(self) -> bool:
        """Whether no forked state waits to be copied: what is free is of use to nobody."""
        return not self._slot_copies and self._draft is None

    def first_waiting(self) -> list[ScheduledSequence]:
        """Those that may begin with the next step."""
        return [sequence for sequence in self._waiting[: self.manager.rows.free] if not sequence.memory.length]

    def check(self, request: ScheduledRequest) -> None:
        """RequestError when the pools could never hold the request."""
        self.capacity.check(request)

    def add(self, request: ScheduledRequest) -> ScheduledSequence:
        """Let the request wait for its turn; RequestError when the pools could never hold it."""
        self.check(request)
        rank = self.settings.policy.rank(request.priority, self._arrivals, self._step)
        self._arrivals += 1
        sequence = self._make(request, list(request.prompt_ids), (rank, self._next_id))
        insort(self._waiting, sequence, key=_order)
        return sequence

    def fork(self, parent: ScheduledSequence) -> ScheduledSequence:
        """A second sequence with the tokens and, where memory allows, the memory of ``parent``; not during a step."""
        assert self._draft is None and parent.state is not State.FINISHED
        child = self._make(parent.request, parent.tokens.copy(), parent.order[:2])
        child.cached_tokens = parent.cached_tokens
        memory = None
        if parent.state is State.RUNNING:
            memory = self.manager.fork(parent.memory, child.tokens)
        if memory is None:
            insort(self._waiting, child, key=_order)
            return child
        child.memory = memory
        child.state = State.RUNNING
        insort(self._running, child, key=_order)
        if memory.slot != NONE:
            self._slot_copies.append((parent.memory.slot, memory.slot))
            self._forked.append(child)
        return child

    def finish(self, sequence: ScheduledSequence) -> None:
        """End the sequence, whatever it does at the time. Ending it twice is allowed."""
        if sequence.state is State.FINISHED:
            return
        draft = self._draft
        if draft is not None and (sequence in draft.rows or sequence in draft.admitted):
            sequence.cancelled = True
            return
        (self._waiting if sequence.state is State.WAITING else self._running).remove(sequence)
        self._free(sequence)

    def decoding(self) -> list[ScheduledSequence]:
        """Those that one token is to be fed of, in whose row there is room for candidate tokens."""
        return [sequence for sequence in self._running if sequence.pending == 1 and self._most_candidates(sequence) > 0]

    def plan(self, candidates: Mapping[int, tuple[int, ...]] = _NO_CANDIDATES) -> StepPlan | None:
        """The next step, whose memory is reserved; None when there is nothing to do.

        ``candidates``: by sequence that decodes, tokens to try behind its own, as many as find room.
        """
        assert self._draft is None, "the step before has neither been committed nor failed"
        draft = Draft(self.manager.begin(), self.settings.max_tokens)
        self._schedule_running(draft, candidates)
        if not draft.preempted:
            self._admit(draft)
        if self._waiting and not (draft.rows or draft.admitted or draft.preempted):
            self._unblock(draft)
        self._step += 1
        plan = draft.finish(self._step, self._slot_copies, self._forked)
        if plan is not None:
            self._draft = draft
            self._slot_copies, self._forked = [], []
        return plan

    def commit(self, plan: StepPlan, accepted: Mapping[int, int] = NONE_ACCEPTED) -> None:
        """The step has run: its tokens are in the cache, of candidates the first ``accepted`` of each sequence."""
        draft = self._close()
        draft.reservation.commit({each.memory: accepted.get(each.id, 0) for each in draft.candidates})
        self._settle_swaps(plan)
        for id_ in plan.forked:
            if id_ in self.sequences and self.sequences[id_].state is State.RUNNING:
                self.sequences[id_].memory.exact = True
        for sequence in [*draft.rows, *draft.admitted]:
            if sequence.cancelled:
                self.finish(sequence)

    def fail(self, plan: StepPlan) -> list[ScheduledSequence]:
        """The step failed: the sequences that took part end and are returned; all others go on."""
        draft = self._close()
        draft.reservation.release()
        died = list(dict.fromkeys([*draft.rows, *draft.admitted]))
        self._settle_swaps(plan)
        for sequence in died:
            sequence.memory.exact = False
            self.finish(sequence)
        for id_ in plan.forked:
            forked = self.sequences.get(id_)
            if forked is not None and forked.state is State.RUNNING:
                # Whether its state was copied is unknown: it computes its tokens again.
                self._running.remove(forked)
                self._wait_again(forked)
        return died

    def check_integrity(self) -> None:
        """PoolError unless every block, slot and host byte belongs to exactly the sequences that say so."""
        reservation = None if self._draft is None else self._draft.reservation
        self.manager.check_integrity((sequence.memory for sequence in self.sequences.values()), reservation)
        assert all(sequence.state is State.RUNNING and sequence.memory.row != NONE for sequence in self._running)
        assert all(sequence.state is State.WAITING and sequence.memory.row == NONE for sequence in self._waiting)
        assert len(self._running) + len(self._waiting) == len(self.sequences)
        assert self._host_bytes == sum(sequence.host_bytes for sequence in self.sequences.values())

    def _schedule_running(self, draft: Draft, candidates: Mapping[int, tuple[int, ...]]) -> None:
        decoding, prompts = [], []
        for sequence in self._running:
            pending = len(sequence.tokens) - sequence.memory.length
            if pending == 1:
                decoding.append(sequence)
            elif pending:
                prompts.append(sequence)
        if candidates:
            decoding = [each for each in decoding if not self._try_candidates(draft, each, candidates.get(each.id, ()))]
        self._decode(draft, decoding)
        for place, sequence in enumerate(prompts):
            if sequence.state is State.RUNNING and draft.budget:
                others = len(prompts) - place - 1 + len(self._waiting)
                self._make_room(draft, sequence, self._chunk(draft, sequence, others))

    def _decode(self, draft: Draft, decoding: list[ScheduledSequence]) -> None:
        """One token of each, first of those that have the memory for it."""
        growing = [decoding[place] for place in draft.reservation.extend_by_one([each.memory for each in decoding])]
        if growing:
            grows = set(growing)
            decoding = [sequence for sequence in decoding if sequence not in grows]
        draft.add_decoding(decoding)
        for sequence in growing:
            if sequence.state is State.RUNNING:
                self._make_room(draft, sequence, 1)

    def _try_candidates(self, draft: Draft, sequence: ScheduledSequence, candidates: tuple[int, ...]) -> bool:
        """Add the sequence with those of its candidates that find room; False when none does."""
        # Nobody who runs loses a token for them.
        room = min(self._most_candidates(sequence), draft.budget - len(self._running))
        tried = candidates[: max(0, room)]
        if not tried or not draft.reservation.extend(sequence.memory, 1 + len(tried), candidates=len(tried)):
            return False
        draft.add_candidates(sequence, tried)
        return True

    def _most_candidates(self, sequence: ScheduledSequence) -> int:
        """Candidates that a sequence has room for, short of its end and of a state that the prefix cache wants."""
        memory = sequence.memory
        most = min(sequence.request.most_tokens - len(sequence.tokens), memory.stop - memory.length - 2)
        return min(most, len(memory.candidates)) if self.manager.keeps_states else most

    def _make_room(self, draft: Draft, sequence: ScheduledSequence, count: int) -> None:
        """Add the sequence, at the cost of those that come last, or of itself when it is the last."""
        while not draft.reservation.extend(sequence.memory, count):
            victim = self._running[-1]
            self._preempt(draft, victim)
            if victim is sequence:
                return
        draft.add(sequence, count)

    def _admit(self, draft: Draft) -> None:
        policy = self.settings.policy
        while self._waiting and draft.budget:
            sequence = self._waiting[0]
            if sequence in draft.preempted:
                return
            if self._try_admit(draft, sequence):
                continue
            last = self._running[-1] if self._running else sequence
            if last.order <= sequence.order or not policy.preempts(sequence.request.priority, last.request.priority):
                return
            self._preempt(draft, last)

    def _unblock(self, draft: Draft) -> None:
        """Nobody advances, as beams hold what others need that they wait for: the last make room for the first."""
        while self._running and not draft.admitted and self._waiting[0] not in draft.preempted:
            self._preempt(draft, self._running[-1])
            self._admit(draft)

    def _try_admit(self, draft: Draft, sequence: ScheduledSequence) -> bool:
        manager, memory = self.manager, sequence.memory
        begins = not memory.length
        if begins:
            manager.allocator.adopt(memory)
        count = self._chunk(draft, sequence, len(self._waiting) - 1)
        spare = 0
        if draft.rows:
            whole = manager.most_blocks(len(sequence.tokens), self.settings.max_tokens)
            spare = self._spare + max(0, whole - manager.blocks_for(memory.length + count))
        while not draft.reservation.extend(memory, count, spare):
            shared = begins and memory.length > 0
            if begins:
                manager.release(memory)
            if not shared or self._running:
                return False
            # What it shares may be what keeps it from growing: alone, it can do without.
            count = self._chunk(draft, sequence, len(self._waiting) - 1)
        if begins:
            manager.allocator.admit(memory)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = memory.length
        del self._waiting[0]
        sequence.state = State.RUNNING
        insort(self._running, sequence, key=_order)
        draft.admitted.append(sequence)
        if sequence.host_copy is not None:
            held = tuple(memory.blocks[memory.passed : manager.blocks_for(memory.length)])
            draft.swap_ins.append(Swap(sequence.id, held, () if memory.slot == NONE else (memory.slot,)))
        if count:
            draft.add(sequence, count)
        return True

    def _preempt(self, draft: Draft, victim: ScheduledSequence) -> None:
        """Take the victim's memory, now: by copying it to the host if there is room, else it is computed again."""
        draft.drop(victim)
        self._running.remove(victim)
        memory, settings = victim.memory, self.settings
        held = memory.held
        size = len(held) * settings.block_bytes + (memory.slot != NONE) * settings.slot_bytes
        if settings.swap_bytes and self._host_bytes + size <= settings.swap_bytes:
            draft.swap_outs.append(Swap(victim.id, tuple(held), () if memory.slot == NONE else (memory.slot,)))
            self.manager.park(memory)
            victim.host_bytes = size
            self._host_bytes += size
            victim.state = State.WAITING
            insort(self._waiting, victim, key=_order)
        else:
            self._wait_again(victim)
        victim.preemptions += 1
        draft.preempted.add(victim)

    def _wait_again(self, sequence: ScheduledSequence) -> None:
        """Back to the queue, with nothing computed but what the prefix cache keeps."""
        self._retire(sequence)
        sequence.state = State.WAITING
        insort(self._waiting, sequence, key=_order)

    def _settle_swaps(self, plan: StepPlan) -> None:
        for swap in plan.swap_ins:
            self._drop_copy(self.sequences[swap.sequence])
        for swap in plan.swap_outs:
            sequence = self.sequences.get(swap.sequence)
            if sequence is not None and sequence.host_copy is None:
                # The host had no memory for it: it computes its tokens again.
                self._drop_copy(sequence)
                self.manager.release(sequence.memory)

    def _chunk(self, draft: Draft, sequence: ScheduledSequence, others: int) -> int:
        """Tokens of a prompt for this step: at most half of the budget that is left while others want some, and not
        past the point where the prefix cache wants the state."""
        budget, memory = draft.budget, sequence.memory
        return min(sequence.pending, memory.stop - memory.length, budget if not others else max(1, budget // 2))

    def _make(self, request: ScheduledRequest, tokens: list[int], place: tuple[int, int]) -> ScheduledSequence:
        """``place``: that of the request, so that its forks come right after it: beams wait for each other."""
        sequence = ScheduledSequence(self._next_id, request, tokens, (*place, self._next_id))
        self._next_id += 1
        self.sequences[sequence.id] = sequence
        return sequence

    def _close(self) -> Draft:
        draft, self._draft = self._draft, None
        assert draft is not None, "there is no step under way"
        return draft

    def _retire(self, sequence: ScheduledSequence) -> None:
        """Take the memory; what beams computed is of use to nobody else."""
        if sequence.request.sequences > 1:
            self.manager.release(sequence.memory)
        else:
            self.manager.retire(sequence.memory)

    def _free(self, sequence: ScheduledSequence) -> None:
        self._retire(sequence)
        self._drop_copy(sequence)
        sequence.state = State.FINISHED
        del self.sequences[sequence.id]

    def _drop_copy(self, sequence: ScheduledSequence) -> None:
        self._host_bytes -= sequence.host_bytes
        sequence.host_bytes, sequence.host_copy = 0, None
