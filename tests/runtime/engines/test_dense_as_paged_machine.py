"""Any history of steps, copies, swaps and ends over a dense engine's blocks and slots: each pair knows its tokens."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import hybridge.runtime.engines.capacity
from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.pool_sizes import PoolSizes
from tests.runtime.packed_steps import Row, packed_step
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA, VOCAB, ToyEngine, toy_config, toy_logits
from tests.support.effort import examples

ROWS, PLACES = 3, 7
new_tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


class DenseAsPagedMachine(RuleBasedStateMachine):
    """The model is the tokens of each sequence, which has one block and one slot."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(hybridge.runtime.engines.capacity, "FIRST_CAPACITY", 4)
        self.sequences: list[Row] = []
        self.swapped: list[tuple[HostCopy, list[int]]] = []

    def teardown(self) -> None:
        self._patch.undo()

    @initialize(
        layers=st.sampled_from([HYBRID, PURE_ATTENTION, PURE_MAMBA]),
        all_logits=st.booleans(),
        max_step=st.sampled_from([1, 3, 96]),
    )
    def start(self, layers: tuple[str, ...], all_logits: bool, max_step: int) -> None:
        config = toy_config(layers, all_logits=all_logits, max_batch=ROWS, max_seq_len=48)
        self.engine = DenseAsPaged(ToyEngine(config, max_step))
        self.kv, self.state = layers != PURE_MAMBA, layers != PURE_ATTENTION
        self.engine.allocate_pools(PoolSizes(PLACES * self.kv, 48, PLACES * self.state))
        self.engine.watch_usage(
            lambda block: any(each.block == block for each in self.sequences),
            lambda slot: any(each.slot == slot for each in self.sequences),
        )

    def free(self) -> tuple[int, int]:
        blocks = set(range(PLACES)) - {each.block for each in self.sequences}
        slots = set(range(PLACES)) - {each.slot for each in self.sequences}
        return max(blocks) if self.kv else -1, min(slots) if self.state else -1

    @precondition(lambda self: len(self.sequences) < PLACES - 1)
    @rule()
    def begin(self) -> None:
        block, slot = self.free()
        self.engine.zero_slots([slot] if self.state else [])
        self.sequences.append(Row(block, slot, []))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.sampled_from(self.sequences), unique_by=id, min_size=1, max_size=ROWS))
        rows = [row for row in rows if len(row.tokens) < 42]
        if not rows:
            return
        new = [data.draw(new_tokens) for _ in rows]
        wanted = [data.draw(st.sets(st.integers(0, len(ids) - 1))) for ids in new]
        self.run_step(rows, new, wanted)

    @precondition(lambda self: self.sequences)
    @rule(count=st.integers(1, ROWS), token=st.integers(0, VOCAB - 1), steps=st.integers(1, 7))
    def decode(self, count: int, token: int, steps: int) -> None:
        for _ in range(steps):
            rows = [row for row in self.sequences[:count] if len(row.tokens) < 48]
            if rows:
                self.run_step(rows, [[token]] * len(rows), [{0}] * len(rows))

    def run_step(self, rows: list[Row], new: list[list[int]], wanted: list[set[int]]) -> None:
        found = self.engine.step(packed_step(rows, new, wanted, 48))
        expected = []
        for row, ids, places in zip(rows, new, wanted, strict=True):
            expected += [toy_logits(self.engine.config, row.tokens + ids[: place + 1]) for place in sorted(places)]
            row.tokens += ids
        np.testing.assert_array_equal(found, np.array(expected, np.float32).reshape(found.shape))

    @precondition(lambda self: self.sequences and len(self.sequences) < PLACES - 1)
    @rule(data=st.data(), crosses=st.booleans())
    def fork(self, data: st.DataObject, crosses: bool) -> None:
        parent = data.draw(st.sampled_from(self.sequences))
        block, slot = self.free()
        self.engine.copy_slots([parent.slot] * self.state, [slot] * self.state)
        self.engine.copy_blocks([parent.block] * self.kv, [block] * self.kv)
        if crosses:  # copy-on-write gives the new block to whichever of both is written to first
            parent.block, block = block, parent.block
        self.sequences.append(Row(block, slot, list(parent.tokens)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.sequences.remove(data.draw(st.sampled_from(self.sequences)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), arrays=st.booleans())
    def swap_out(self, data: st.DataObject, arrays: bool) -> None:
        row = data.draw(st.sampled_from(self.sequences))
        copy = self.engine.swap_out([row.block] * self.kv, [row.slot] * self.state)
        if arrays:
            shown = self.engine.arrays_from_copy(copy)
            copy = self.engine.copy_from_arrays(shown, copy.blocks, copy.slots)
        self.swapped.append((copy, list(row.tokens)))
        self.sequences.remove(row)

    @precondition(lambda self: self.swapped and len(self.sequences) < PLACES - 1)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        copy, tokens = data.draw(st.sampled_from(self.swapped))
        block, slot = self.free()
        self.engine.swap_in(copy, [block] * self.kv, [slot] * self.state)
        self.sequences.append(Row(block, slot, list(tokens)))

    @precondition(lambda self: self.sequences and not self.state)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.sequences))
        del row.tokens[data.draw(st.integers(0, len(row.tokens))) :]


DenseAsPagedMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestDenseAsPaged = DenseAsPagedMachine.TestCase
