"""Pools as plain dictionaries: what lies where, so that a wrong block, slot or copy shows."""

from __future__ import annotations

from hybridge.runtime.blocks import BlockManager, Reservation, SequenceMemory

POISON = None


class FakeMemory:
    """Each position of a block holds the tokens up to it; each slot the tokens that it consumed."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self.kv: dict[int, list[tuple[int, ...] | None]] = {}
        self.states: dict[int, tuple[int, ...] | None] = {}

    def poison_free(self) -> None:
        """Overwrite everything that is free."""
        pool = self.manager.pool
        for block in range(pool.num_blocks):
            if not pool.references(block):
                self.kv[block] = [POISON] * self.manager.block_size
        for slot in range(self.manager.slots.num_slots):
            if not self.manager.slots.in_use(slot):
                self.states[slot] = POISON

    def run(self, reservation: Reservation, counts: dict[SequenceMemory, int]) -> None:
        """What an engine does between reserve and commit."""
        for slot in reservation.new_slots:
            self.states[slot] = ()
        for source, target in reservation.block_copies:
            assert self.manager.pool.references(source), "a copy from a free block"
            self.kv[target] = list(self.kv[source])
        for memory, count in counts.items():
            for position in range(memory.length, memory.length + count):
                if self.manager.needs.kv:
                    block = int(self.manager.rows.array[memory.row, position // self.manager.block_size])
                    assert self.manager.pool.references(block) == 1, "a write to a shared block"
                    cells = self.kv.setdefault(block, [POISON] * self.manager.block_size)
                    cells[position % self.manager.block_size] = tuple(memory.tokens[: position + 1])
            if self.manager.needs.state:
                assert self.states[memory.slot] is not None, "a slot that was not zeroed"
                state = self.states[memory.slot] or ()
                self.states[memory.slot] = (*state, *memory.tokens[len(state) : len(state) + count])

    def save(self, memory: SequenceMemory) -> tuple[list[list[tuple[int, ...] | None]], tuple[int, ...] | None]:
        return [list(self.kv[block]) for block in memory.owned_blocks], self.states.get(memory.slot)

    def load(self, memory: SequenceMemory, saved: tuple[list, tuple[int, ...] | None]) -> None:
        cells, state = saved
        for block, values in zip(memory.owned_blocks, cells, strict=False):
            self.kv[block] = list(values)
        self.states[memory.slot] = state

    def check(self, memory: SequenceMemory) -> None:
        """Everything that the next token of ``memory`` could read is what it should be."""
        manager = self.manager
        if manager.needs.kv:
            for position in range(manager.needs.first_visible(memory.length), memory.length):
                block = int(manager.rows.array[memory.row, position // manager.block_size])
                assert block == memory.blocks[position // manager.block_size]
                assert self.kv[block][position % manager.block_size] == tuple(memory.tokens[: position + 1])
        if manager.needs.state and memory.slot >= 0:
            assert self.states[memory.slot] == tuple(memory.tokens[: memory.length])
