"""Any history of steps, forks, parkings and releases: nothing leaks, nothing is shared that is written."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridge.runtime.blocks import BlockManager, CacheNeeds, Reservation, SequenceMemory
from hybridge.runtime.blocks.block_prefix_cache import BlockPrefixCache, block_cache
from hybridge.runtime.engines.pool_sizes import PoolSizes
from tests.runtime.blocks.fake_memory import FakeMemory
from tests.support.effort import examples

HYBRID, ATTENTION, RECURRENT = CacheNeeds(True, True), CacheNeeds(True, False), CacheNeeds(False, True)
WINDOWED = CacheNeeds(True, True, window=5)
MAX_SEQ = 30


class BlockManagerMachine(RuleBasedStateMachine):
    """Sequences are lists of tokens from a tiny vocabulary, so that prefixes meet often."""

    @initialize(
        needs=st.sampled_from([HYBRID, ATTENTION, ATTENTION, RECURRENT, WINDOWED]),
        blocks=st.integers(8, 16),
        block_size=st.sampled_from([1, 3, 4]),
        slots=st.integers(1, 4),
        collide=st.booleans(),
    )
    def start(self, needs: CacheNeeds, blocks: int, block_size: int, slots: int, collide: bool) -> None:
        sizes = PoolSizes(blocks, block_size, slots)
        cache = block_cache(sizes, needs)
        if collide and isinstance(cache, BlockPrefixCache):
            cache = BlockPrefixCache(sizes, lambda before, own: 7)
        self.manager = BlockManager(block_size, needs, 5, MAX_SEQ, cache)
        self.memory = FakeMemory(self.manager)
        self.running: list[SequenceMemory] = []
        self.parked: list[tuple[SequenceMemory, tuple]] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ))
    def begin(self, tokens: list[int]) -> None:
        memory = SequenceMemory(tokens)
        self.manager.match(memory)
        self.step([(memory, 1)], [])
        if memory in self.running:
            return
        self.manager.release(memory)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["commit", "commit", "release"]))
    def advance(self, data: st.DataObject, outcome: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.running), unique=True, min_size=1))
        requested = [(memory, data.draw(st.integers(1, 6))) for memory in chosen]
        dropped = data.draw(st.lists(st.sampled_from(chosen), unique=True))
        self.step(requested, dropped, outcome)

    def step(self, requested: list, dropped: list, outcome: str = "commit") -> None:
        before = {memory: (memory.length, list(memory.blocks), memory.slot, memory.row) for memory, _ in requested}
        free = self.manager.pool.available, self.manager.slots.free, self.manager.rows.free
        reservation, counts = Reservation(self.manager), {}
        for memory, count in requested:
            count = min(count, MAX_SEQ - memory.length)
            while memory.length + count > len(memory.tokens):
                memory.tokens.append(len(memory.tokens) % 2)
            if count and reservation.extend(memory, count):
                counts[memory] = count
            else:
                assert (memory.length, memory.blocks, memory.slot, memory.row) == before[memory]
        for memory in dropped:
            if counts.pop(memory, None):
                reservation.drop(memory)
        if outcome == "release":
            reservation.release()
            assert free == (self.manager.pool.available, self.manager.slots.free, self.manager.rows.free)
            assert all((m.length, m.blocks, m.slot, m.row) == before[m] for m, _ in requested)
            return
        self.memory.poison_free()
        self.memory.run(reservation, counts)
        reservation.commit()
        self.running += [memory for memory in counts if memory not in self.running]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.running))
        child = self.manager.fork(parent, list(parent.tokens))
        if child is None:
            assert not self.manager.rows.free or not self.manager.slots.free
            return
        self.memory.states[child.slot] = self.memory.states.get(parent.slot)
        self.running.append(child)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        memory = data.draw(st.sampled_from(self.running))
        self.parked.append((memory, self.memory.save(memory)))
        self.running.remove(memory)
        self.manager.park(memory)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        memory, saved = data.draw(st.sampled_from(self.parked))
        reservation = Reservation(self.manager)
        if memory.length == MAX_SEQ or not reservation.extend(memory, 1):
            return
        if memory.length == len(memory.tokens):
            memory.tokens.append(1)
        assert not reservation.new_slots
        self.memory.poison_free()
        self.memory.load(memory, saved)
        self.memory.run(reservation, {memory: 1})
        reservation.commit()
        self.parked.remove((memory, saved))
        self.running.append(memory)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        memory = data.draw(st.sampled_from(self.running))
        self.running.remove(memory)
        self.manager.release(memory)
        self.manager.release(memory)  # empty by now: allowed

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity(self.running)
        assert self.manager.pool.used + self.manager.pool.free == self.manager.pool.num_blocks
        assert self.manager.rows.free == 5 - len(self.running)
        self.memory.poison_free()
        for memory in self.running:
            self.memory.check(memory)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for memory in self.running:
                self.manager.release(memory)
            self.manager.check_integrity([])
            assert self.manager.pool.available == self.manager.pool.num_blocks
            assert (self.manager.rows.array == -1).all()


# 130 histories of up to 60 steps: with the scheduler's machine, above 10,000 steps in each run.
BlockManagerMachine.TestCase.settings = settings(max_examples=examples(130), stateful_step_count=60, deadline=None)
TestBlockManager = BlockManagerMachine.TestCase
