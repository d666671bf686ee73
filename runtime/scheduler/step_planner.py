"""Chooses the sequences of a step and their numbers of tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.scheduler.plan import Swap
from hybridge.runtime.scheduler.queues import SequenceQueues
from hybridge.runtime.scheduler.sequence import ScheduledSequence, State
from hybridge.runtime.scheduler.settings import SchedulerSettings
from hybridge.runtime.scheduler.step_builder import StepBuilder


class StepPlanner:
    """Fills a step: decoding rows come first, then running prompts, then waiting ones.

    When memory runs out, the last sequence is preempted, so that the first always advances.
    """

    def __init__(self, manager: BlockManager, settings: SchedulerSettings, queues: SequenceQueues) -> None:
        self._manager, self._settings, self._queues = manager, settings, queues
        self._spare = int(settings.watermark * manager.pool.num_blocks)

    def fill(self, step: StepBuilder, draft_tokens: Mapping[int, tuple[int, ...]]) -> None:
        """Choose the tokens of the step and reserve their memory; draft tokens as in ``Scheduler.plan``."""
        self._add_running(step, draft_tokens)
        if not step.preempted:
            self._admit(step)
        if self._queues.waiting and not (step.rows or step.admitted or step.preempted):
            self._unblock(step)

    def repeats(self, step: StepBuilder) -> bool:
        """Whether the step after ``step``, which is filled, has the same rows as long as no queue changes and none of
        them needs more memory: all that runs decodes, and what waits waits for a row."""
        queues = self._queues
        if not step.rows or not step.decodes or step.preempted or step.admitted:
            return False
        return len(step.rows) == len(queues.running) and not (queues.waiting and self._manager.rows.free)

    def may_preempt(self) -> bool:
        """Whether the next step may preempt a running sequence, as too few blocks are free for the pending tokens."""
        manager, queues, most = self._manager, self._queues, self._settings.max_tokens
        if not manager.needs.kv:
            return False
        needed = 0
        for sequence in queues.running:
            memory, pending = sequence.memory, sequence.pending
            if memory.length + pending > memory.writable:
                # One block may be copied.
                needed += 1 + max(0, manager.blocks_for(memory.length + min(pending, most)) - len(memory.blocks))
        return manager.pool.available < needed

    def max_draft_tokens(self, sequence: ScheduledSequence) -> int:
        """Maximum draft tokens of a sequence before its end or the next state that the prefix cache stores."""
        memory = sequence.memory
        return min(sequence.request.most_tokens - len(sequence.tokens), memory.stop - memory.length - 2)

    def _add_running(self, step: StepBuilder, draft_tokens: Mapping[int, tuple[int, ...]]) -> None:
        queues = self._queues
        decoding, prompts = [], []
        for sequence in queues.running:
            pending = len(sequence.tokens) + sequence.awaits_token - sequence.memory.length
            if pending == 1:
                decoding.append(sequence)
            elif pending:
                prompts.append(sequence)
        if draft_tokens:
            decoding = [
                each for each in decoding if not self._try_draft_tokens(step, each, draft_tokens.get(each.id, ()))
            ]
        self._decode(step, decoding)
        for place, sequence in enumerate(prompts):
            if sequence.state is State.RUNNING and step.budget:
                others = place + 1 < len(prompts) or self._may_start(0)
                self._make_room(step, sequence, self._chunk(step, sequence, others))

    def _decode(self, step: StepBuilder, decoding: list[ScheduledSequence]) -> None:
        """One token for each, first for sequences that already have memory for it."""
        growing = [decoding[place] for place in step.reservation.extend_by_one([each.memory for each in decoding])]
        if growing:
            grows = set(growing)
            decoding = [sequence for sequence in decoding if sequence not in grows]
        step.add_decoding(decoding)
        for sequence in growing:
            if sequence.state is State.RUNNING:
                self._make_room(step, sequence, 1)

    def _try_draft_tokens(self, step: StepBuilder, sequence: ScheduledSequence, draft_tokens: tuple[int, ...]) -> bool:
        """Add the sequence with the draft tokens that fit; False when none does."""
        # They never take a token or a block from another running sequence.
        others = len(self._queues.running) - len(step.rows) - 1
        room = min(self.max_draft_tokens(sequence), step.budget - 1 - others)
        tried, spare = draft_tokens[: max(0, room)], others * self._manager.needs.kv
        if not tried or not step.reservation.extend(sequence.memory, 1 + len(tried), spare, len(tried)):
            return False
        step.add_draft_tokens(sequence, tried)
        return True

    def _make_room(self, step: StepBuilder, sequence: ScheduledSequence, count: int) -> None:
        """Add the sequence, preempting the last ones, or itself if it is the last."""
        while not step.reservation.extend(sequence.memory, count):
            victim = self._queues.running[-1]
            self._preempt(step, victim)
            if victim is sequence:
                return
        step.add(sequence, count)

    def _admit(self, step: StepBuilder) -> None:
        queues = self._queues
        while queues.waiting and step.budget:
            sequence = queues.waiting[0]
            if sequence in step.preempted:
                return
            if self._try_admit(step, sequence):
                continue
            if not self._is_urgent(sequence):
                return
            self._preempt(step, queues.running[-1])

    def _is_urgent(self, sequence: ScheduledSequence) -> bool:
        """Whether a waiting sequence may take the place of the last running one."""
        if not self._queues.running:
            return False
        last, policy = self._queues.running[-1], self._settings.policy
        return last.order > sequence.order and policy.preempts(sequence.request.priority, last.request.priority)

    def _may_start(self, place: int) -> bool:
        """Whether a sequence waits at this place in the queue for which a row is left, or taken from a running one."""
        waiting = self._queues.waiting
        return place < len(waiting) and (place < self._manager.rows.free or self._is_urgent(waiting[place]))

    def _unblock(self, step: StepBuilder) -> None:
        """Resolve a deadlock of beams that wait for each other's memory: preempt the last for the first."""
        queues = self._queues
        while queues.running and not step.admitted and queues.waiting[0] not in step.preempted:
            self._preempt(step, queues.running[-1])
            self._admit(step)

    def _try_admit(self, step: StepBuilder, sequence: ScheduledSequence) -> bool:
        """Start the first waiting sequence; False if there is no room for it."""
        manager, queues, memory = self._manager, self._queues, sequence.memory
        begins = not memory.length
        if begins:
            manager.match(memory, reuse=not (sequence.prompt_logits_left or sequence.request.whole_prompt))
        count = self._chunk(step, sequence, self._may_start(1))
        spare = 0
        if step.rows:
            whole = manager.most_blocks(len(sequence.tokens), self._settings.max_tokens)
            spare = self._spare + max(0, whole - manager.blocks_for(memory.length + count))
        while not step.reservation.extend(memory, count, spare):
            shared = begins and memory.length > 0
            if begins:
                manager.release(memory)
            if not shared or queues.running:
                return False
            # The cached prefix itself may take the room that it needs: start without it.
            count = self._chunk(step, sequence, self._may_start(1))
        if begins:
            manager.begin(memory)
        if sequence.cached_tokens is None:
            sequence.cached_tokens, sequence.admitted_at = memory.length, time.perf_counter()
        del queues.waiting[0]
        queues.run(sequence)
        step.admitted.append(sequence)
        if sequence.host_copy is not None:
            blocks = tuple(memory.blocks[memory.passed : manager.blocks_for(memory.length)])
            step.swap_ins.append(Swap(sequence.id, blocks, () if memory.slot == NONE else (memory.slot,)))
        if count:
            step.add(sequence, count)
        return True

    def _preempt(self, step: StepBuilder, victim: ScheduledSequence) -> None:
        """Preempt the victim now: copy its memory to the host if there is room, else compute it again later."""
        step.drop(victim)
        swap = self._queues.preempt(victim)
        if swap is not None:
            step.swap_outs.append(swap)
        step.preempted.add(victim)

    def _chunk(self, step: StepBuilder, sequence: ScheduledSequence, others: bool) -> int:
        """Tokens of a prompt for this step: at most half of the remaining budget if others may get the rest, within the
        step's limit of prompt logits, and up to the next state that the prefix cache stores if that must be after the
        last token."""
        budget, memory = step.budget, sequence.memory
        most = min(sequence.pending, budget if not others else max(1, budget // 2))
        if not self._manager.takes_checkpoints:
            most = min(most, memory.stop - memory.length)
        if sequence.prompt_logits_left:
            most = min(most, max(1, sequence.logits_from - memory.length + step.prompt_logits))
        return most
