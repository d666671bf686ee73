"""Any history of joins, feeds, decodes, forks, moves, finishes and compactions: each row knows exactly its tokens."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import hybridge.runtime.caches.hybrid
from hybridge.artifact.errors import RequestError
from hybridge.runtime.batch import RowBatch
from hybridge.runtime.caches import RowSnapshot
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA, VOCAB, ToyEngine, toy_config, toy_logits
from tests.support.effort import examples

ROWS = 4
tokens_lists = st.lists(st.integers(0, VOCAB - 1), max_size=11)


class RowBatchMachine(RuleBasedStateMachine):
    """The model of the batch is a plain dictionary: handle -> tokens fed so far."""

    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(hybridge.runtime.caches.hybrid, "FIRST_CAPACITY", 4)

    def teardown(self) -> None:
        self._patch.undo()

    @initialize(
        layers=st.sampled_from([HYBRID, PURE_ATTENTION, PURE_MAMBA]),
        all_logits=st.booleans(),
        max_step=st.sampled_from([1, 3, 96]),
    )
    def start(self, layers: tuple[str, ...], all_logits: bool, max_step: int) -> None:
        self.engine = ToyEngine(toy_config(layers, all_logits=all_logits, max_batch=ROWS), max_step)
        self.batch = RowBatch(self.engine, ROWS)
        self.rows: dict[int, list[int]] = {}

    def check(self, handle: int, logits: np.ndarray) -> None:
        np.testing.assert_array_equal(logits, toy_logits(self.engine.config, self.rows[handle]))

    def room(self, handle: int) -> int:
        return self.engine.max_seq_len - len(self.rows[handle])

    @precondition(lambda self: self.batch.free)
    @rule()
    def join(self) -> None:
        self.rows[self.batch.join()] = []

    @precondition(lambda self: self.batch.free)
    @rule(snapshot=snapshots)
    def join_from_snapshot(self, snapshot: tuple[RowSnapshot, list[int]]) -> None:
        frozen, tokens = snapshot
        self.rows[self.batch.join(frozen)] = list(tokens)

    @precondition(lambda self: self.rows)
    @rule(target=snapshots, data=st.data())
    def capture(self, data: st.DataObject) -> tuple[RowSnapshot, list[int]]:
        handle = data.draw(st.sampled_from(list(self.rows)))
        return self.batch.capture(handle), list(self.rows[handle])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        handles = data.draw(st.lists(st.sampled_from(list(self.rows)), unique=True))
        new = {handle: data.draw(tokens_lists)[: self.room(handle)] for handle in handles}
        logits = self.batch.feed(new)
        assert set(logits) == {handle for handle, ids in new.items() if ids}
        for handle, ids in new.items():
            self.rows[handle] += ids
        for handle, row in logits.items():
            self.check(handle, row)

    @precondition(lambda self: any(self.room(handle) for handle in self.rows))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        open_rows = [handle for handle in self.rows if self.room(handle)]
        handles = data.draw(st.lists(st.sampled_from(open_rows), unique=True, min_size=1))
        new = {handle: data.draw(st.integers(0, VOCAB - 1)) for handle in handles}
        for handle, token in new.items():
            self.rows[handle].append(token)
        for handle, logits in self.batch.decode(new):
            self.check(handle, logits)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def overflow_is_refused_before_any_work(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(list(self.rows)))
        steps = len(self.engine.steps)
        with pytest.raises(RequestError):
            self.batch.feed({handle: [0] * (self.room(handle) + 1)})
        assert len(self.engine.steps) == steps

    @precondition(lambda self: self.rows and self.batch.free)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(list(self.rows)))
        self.rows[self.batch.fork(handle)] = list(self.rows[handle])

    @precondition(lambda self: self.batch.free)
    @rule(prompts=st.lists(tokens_lists.filter(bool), min_size=1, max_size=ROWS))
    def take_from_another_batch(self, prompts: list[list[int]]) -> None:
        other = RowBatch(self.engine, len(prompts))
        theirs = {other.join(): ids for ids in prompts}
        other.feed(theirs)
        for handle, ids in list(theirs.items())[: self.batch.free]:
            self.rows[self.batch.take(other, handle)] = list(ids)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(list(self.rows)))
        self.batch.finish(handle)
        del self.rows[handle]

    @precondition(lambda self: hasattr(self, "batch"))
    @rule()
    def close_gaps(self) -> None:
        self.batch.close_gaps()

    @precondition(lambda self: self.rows)
    @rule()
    def compact(self) -> None:
        self.batch.compact()
        assert self.batch.rows == len(self.rows) and self.batch.free == 0

    @invariant()
    def bookkeeping_agrees(self) -> None:
        if not hasattr(self, "batch"):
            return
        assert self.batch.handles == tuple(self.rows)
        assert self.batch.free + len(self.rows) == self.batch.rows
        for handle, tokens in self.rows.items():
            assert self.batch.length(handle) == len(tokens)


RowBatchMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestRowBatch = RowBatchMachine.TestCase
