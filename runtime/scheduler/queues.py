"""The sequences that wait and that run, in order, and the host memory of those swapped out."""

from __future__ import annotations

from bisect import insort

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.scheduler.plan import StepPlan, Swap
from hybridge.runtime.scheduler.request import ScheduledRequest
from hybridge.runtime.scheduler.sequence import ScheduledSequence, State
from hybridge.runtime.scheduler.settings import SchedulerSettings


def _order(sequence: ScheduledSequence) -> tuple[int, int, int]:
    return sequence.order


class SequenceQueues:
    """All sequences that have not finished.

    sequences   all, by id
    waiting     those without device memory, in order
    running     those with device memory, in order
    host_bytes  host memory of those that were swapped out
    version     grows with every change of a queue
    """

    def __init__(self, manager: BlockManager, settings: SchedulerSettings) -> None:
        self.sequences: dict[int, ScheduledSequence] = {}
        self.waiting: list[ScheduledSequence] = []
        self.running: list[ScheduledSequence] = []
        self.host_bytes = self.version = 0
        self._manager, self._settings = manager, settings
        self._next_id = 0

    def make(
        self, request: ScheduledRequest, tokens: list[int], rank: int, first: int | None = None
    ) -> ScheduledSequence:
        """A sequence in neither queue yet, of this rank.

        first: of a fork, the id of its request's first sequence, behind which it comes, as beams wait for each other.
        """
        id_, self._next_id = self._next_id, self._next_id + 1
        order = (rank, id_ if first is None else first, id_)
        sequence = self.sequences[id_] = ScheduledSequence(id_, request, tokens, order)
        return sequence

    def wait(self, sequence: ScheduledSequence) -> None:
        """Let it wait; it holds no device memory."""
        sequence.state = State.WAITING
        self.version += 1
        insort(self.waiting, sequence, key=_order)

    def run(self, sequence: ScheduledSequence) -> None:
        """Let it run, with the device memory that it has."""
        sequence.state = State.RUNNING
        self.version += 1
        insort(self.running, sequence, key=_order)

    def wait_again(self, sequence: ScheduledSequence) -> None:
        """Return a running sequence to the queue; it keeps only what the prefix cache stores."""
        self.running.remove(sequence)
        self._retire(sequence)
        self.wait(sequence)

    def preempt(self, victim: ScheduledSequence) -> Swap | None:
        """Take the memory of one that runs, now: what to copy to the host, or None where it computes its tokens again.

        The host has to have room for what is copied.
        """
        memory, settings = victim.memory, self._settings
        blocks = memory.owned_blocks
        size = len(blocks) * settings.block_bytes + (memory.slot != NONE) * settings.slot_bytes
        victim.preemptions += 1
        if not settings.swap_bytes or self.host_bytes + size > settings.swap_bytes:
            self.wait_again(victim)
            return None
        swap = Swap(victim.id, tuple(blocks), () if memory.slot == NONE else (memory.slot,))
        self.running.remove(victim)
        self._manager.park(memory)
        victim.host_bytes = size
        self.host_bytes += size
        self.wait(victim)
        return swap

    def settle_swaps(self, plan: StepPlan) -> None:
        """The plan's copies between device and host are done, or failed with its step."""
        for swap in plan.swap_ins:
            self._drop_copy(self.sequences[swap.sequence])
        for swap in plan.swap_outs:
            sequence = self.sequences.get(swap.sequence)
            if sequence is not None and sequence.host_copy is None:
                # The host had no memory for it: it computes its tokens again.
                self._drop_copy(sequence)
                self._manager.release(sequence.memory)

    def finish(self, sequence: ScheduledSequence) -> None:
        """End it; it has not finished."""
        (self.waiting if sequence.state is State.WAITING else self.running).remove(sequence)
        self._retire(sequence)
        self._drop_copy(sequence)
        sequence.state = State.FINISHED
        self.version += 1
        del self.sequences[sequence.id]

    def start_over(self) -> list[ScheduledSequence]:
        """End and return all sequences, which have no memory any more."""
        ended = list(self.sequences.values())
        for sequence in ended:
            sequence.state = State.FINISHED
        self.sequences.clear()
        self.waiting, self.running, self.host_bytes = [], [], 0
        self.version += 1
        return ended

    def check_integrity(self) -> None:
        """AssertionError unless queues, states and host bytes say the same."""
        assert all(sequence.state is State.RUNNING and sequence.memory.row != NONE for sequence in self.running)
        assert all(sequence.state is State.WAITING and sequence.memory.row == NONE for sequence in self.waiting)
        assert len(self.running) + len(self.waiting) == len(self.sequences)
        host_bytes = sum(sequence.host_bytes for sequence in self.sequences.values())
        assert host_bytes == self.host_bytes <= self._settings.swap_bytes

    def _retire(self, sequence: ScheduledSequence) -> None:
        """Take the memory; the prefix cache keeps nothing of beams."""
        if sequence.request.sequences > 1:
            self._manager.release(sequence.memory)
        else:
            self._manager.retire(sequence.memory)

    def _drop_copy(self, sequence: ScheduledSequence) -> None:
        self.host_bytes -= sequence.host_bytes
        sequence.host_bytes, sequence.host_copy = 0, None
