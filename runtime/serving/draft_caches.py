"""Blocks and slots of a draft model's pools."""

from __future__ import annotations

from collections.abc import Container

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks import CacheNeeds
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.serving.draft_rows import DraftedSequence
from hybridge.runtime.serving.settings import GIB

BLOCK_SIZE = 16
# Share of a device's free memory that the caches of a draft model may take.
_SHARE = 0.1


class DraftCaches:
    """Sequences by id, those longest without a proposal first. ``states``: slots of each, 0 for a model without."""

    def __init__(self, engine: PagedEngine, rows: int, length: int, states: int, memory_bytes: int | None) -> None:
        """Pools for ``rows`` sequences of ``length`` tokens, or as many as fit into ``memory_bytes``.

        EngineError when one does not.
        """
        needs = CacheNeeds.of_model(engine.config)
        self._engine, self._states = engine, states if needs.state else 0
        self.block_size = engine.block_size(BLOCK_SIZE)
        blocks = -(-length // self.block_size) if needs.kv else 0
        each = blocks * engine.block_bytes(self.block_size) + self._states * engine.slot_bytes
        free = engine.free_memory()
        budget = memory_bytes
        if budget is None:
            budget = max(each, GIB) if free is None else int(_SHARE * free)
        if each > budget:
            raise EngineError(
                f"speculation: expected at least {each} bytes for the draft model's caches of one sequence of {length} "
                f"tokens, found {budget}: give them more (memory_bytes of DraftModel), or lower max_seq_len"
            )
        count = min(rows, budget // each) if each else rows
        engine.allocate_pools(PoolSizes(count * blocks, self.block_size, count * self._states))
        self._sizes = count * blocks, count * self._states
        self._has_kv = needs.kv
        self.forget_all()

    def find(self, id_: int) -> DraftedSequence | None:
        """The caches of the sequence ``id_``; None if it has none."""
        return self._sequences.get(id_)

    def room(self, id_: int, length: int, protected: Container[int]) -> DraftedSequence | None:
        """The sequence ``id_`` with blocks for ``length`` tokens from its origin on; None where there is no room.

        Other sequences may lose their caches, except those in ``protected``.
        """
        found = self._sequences.pop(id_, None)
        needed = -(-length // self.block_size) if self._has_kv else 0
        while len(self._slots) < (0 if found else self._states) or len(self._blocks) < needed - _block_count(found):
            other = next((other for other in self._sequences if other not in protected), None)
            if other is None:
                if found is not None:
                    self._release(found)
                return None
            self.forget(other)
        begins = found is None
        if found is None:
            found = DraftedSequence([self._slots.pop() for _ in range(self._states)])
        found.blocks += [self._blocks.pop() for _ in range(needed - len(found.blocks))]
        self._sequences[id_] = found
        if begins:
            # Last: if this fails, the caller forgets the sequence, which returns all its blocks and slots.
            self._engine.zero_slots(found.slots[:1])
        return found

    def forget(self, id_: int) -> None:
        """Release the caches of a sequence; unknown ids are ignored."""
        found = self._sequences.pop(id_, None)
        if found is not None:
            self._release(found)

    def forget_all(self) -> None:
        """Release all caches."""
        blocks, slots = self._sizes
        self._blocks, self._slots = list(range(blocks)), list(range(slots))
        self._sequences: dict[int, DraftedSequence] = {}

    def _release(self, sequence: DraftedSequence) -> None:
        self._blocks += sequence.blocks
        self._slots += sequence.slots


def _block_count(sequence: DraftedSequence | None) -> int:
    return 0 if sequence is None else len(sequence.blocks)
