"""The interface of prefix caches for the block manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.cached_prefix import CachedPrefix
from hybridge.runtime.blocks.sequence_memory import NEVER, NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import SlotPool


@dataclass(frozen=True)
class PrefixMatch:
    """The start of a sequence: the KV ``blocks`` and the slot of the ``state`` (-1: none) of its first ``length``
    tokens. stop: where its first checkpoint is taken. prefix: for the sequence's memory."""

    length: int = 0
    blocks: Sequence[int] = ()
    state: int = NONE
    stop: int = NEVER
    prefix: CachedPrefix | None = None


class Checkpoint(NamedTuple):
    """slot: for the state after the first ``tokens`` of a sequence; -1: it is not stored."""

    tokens: int
    slot: int


class PrefixCache(ABC):
    """Keeps KV blocks and recurrent states of earlier sequences for later ones. Reads memories, never changes them.

    Five verbs: ``match`` and ``release``, which lock and unlock a sequence's cached prefix; ``checkpoint``, which
    stores an intermediate state; ``insert`` and ``evict``. Caches without recurrent states only have those that are
    abstract.

    pool: the blocks; slots: of the rows; states: of the cache, the same slots unless the cache packs its states.
    """

    def __init__(self, pool: BlockPool, slots: SlotPool, states: SlotPool | None = None) -> None:
        self.pool, self.slots, self.states = pool, slots, states or slots

    @abstractmethod
    def match(self, memory: SequenceMemory, reuse: bool = True) -> PrefixMatch:
        """Find and lock the longest cached prefix for an empty ``memory``; nothing without ``reuse``.

        At least one token is left to compute, whose logits the sequence needs.
        """

    def begin(self, memory: SequenceMemory) -> None:  # noqa: B027
        """Count a sequence that starts from what ``match`` found."""

    @abstractmethod
    def release(self, memory: SequenceMemory) -> None:
        """Unlock what the sequence has locked; it gives up its memory."""

    @abstractmethod
    def insert(self, memory: SequenceMemory, ended: bool = False) -> bool:
        """Add the computed tokens of ``memory``, for later sequences.

        ended: the sequence is finished; returns True if the cache then took the slot of its state.
        """

    @abstractmethod
    def evict(self, blocks: int) -> bool:
        """Evict until ``blocks`` blocks are free; returns False and evicts nothing when that is impossible."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything that no running sequence uses."""

    def start_over(self) -> None:
        """Forget everything, whatever the pools say; no sequence has memory any more."""
        self.pool.free_all()
        self.slots.free_all()
        self.states.free_all()

    def checkpoints(self, memory: SequenceMemory, end: int) -> Sequence[Checkpoint]:
        """Slots for copies of the states after ``memory.stop`` tokens and later stops up to ``end``, in order."""
        return [Checkpoint(memory.stop, NONE)]

    def insert_checkpoint(self, memory: SequenceMemory, checkpoint: Checkpoint) -> int:
        """The step of ``checkpoints`` has run and the slot holds the state; where the next checkpoint is taken.

        Called for each of them, in order.
        """
        return NEVER

    def checkpoint_to_skip(self, slots: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        """The sequence whose checkpoints in this step should be skipped, as a row needs a slot; slots: one of each.

        None where a slot is free, or a cached state has less value than all of them.
        """
        return None

    def state_copied(self, memory: SequenceMemory) -> None:  # noqa: B027
        """The sequence has copied its initial state: unlock it."""

    def can_take_state(self, memory: SequenceMemory) -> bool:
        """Whether the sequence can take over the slot of its initial state, without a copy."""
        return False

    def take_state(self, memory: SequenceMemory) -> int:
        """Take over that slot and return it; -1 where ``can_take_state`` is false."""
        return NONE

    def blocks(self) -> Iterable[int]:
        """The block references of the cache, one entry each."""
        return ()

    def state_slots(self) -> Iterable[int]:
        """The slots of its states."""
        return ()


class NoPrefixCache(PrefixCache):
    """Every sequence computes all its tokens."""

    def match(self, memory: SequenceMemory, reuse: bool = True) -> PrefixMatch:
        return PrefixMatch()

    def release(self, memory: SequenceMemory) -> None:
        pass

    def insert(self, memory: SequenceMemory, ended: bool = False) -> bool:
        return False

    def evict(self, blocks: int) -> bool:
        return self.pool.free >= blocks

    def clear(self) -> None:
        pass
