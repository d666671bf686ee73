"""Any history of requests, forks, cancellations, steps and failures: pools add up, tokens are those of each alone."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.scheduler import Fcfs, Priority, ScheduledRequest, ScheduledSequence, State, StepPlan
from tests.runtime.scheduler.toy_server import ToyServer
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import paged_config
from tests.support.effort import examples

MAX_SEQ = 24
KINDS = [(HYBRID, None), (HYBRID, 5), (PURE_ATTENTION, None), (PURE_ATTENTION, 4), (PURE_MAMBA, None)]


class SchedulerMachine(RuleBasedStateMachine):
    """Prompts of two tokens only, so that prefixes meet."""

    @initialize(
        kind=st.sampled_from(KINDS),
        block_size=st.sampled_from([1, 3, 4]),
        spare=st.integers(0, 8),
        slots=st.integers(1, 5),
        budget=st.integers(4, 20),
        policy=st.sampled_from([Fcfs(), Priority(patience=3)]),
        swap_bytes=st.sampled_from([0, 500, 100_000]),
        watermark=st.sampled_from([0.0, 0.2]),
        host=st.sampled_from([None, 200]),
        pad_to=st.sampled_from([1, 4]),
    )
    def start(self, kind, block_size, spare, slots, budget, policy, swap_bytes, watermark, host, pad_to) -> None:
        layers, window = kind
        needed = -(-MAX_SEQ // block_size)
        sizes = PoolSizes(needed + spare, block_size, slots)
        config = paged_config(layers, MAX_SEQ, window=window)
        self.server = ToyServer(config, sizes, budget, 4, policy, swap_bytes, watermark, pad_to)
        self.server.engine.host_bytes_left = host
        self.scheduler = self.server.scheduler
        self.plan: StepPlan | None = None

    def alive(self) -> list[ScheduledSequence]:
        return list(self.scheduler.sequences.values())

    @rule(data=st.data(), priority=st.integers(0, 2))
    def add(self, data, priority: int) -> None:
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ))
        new = data.draw(st.integers(1, MAX_SEQ + 1 - len(prompt)))
        self.scheduler.add(ScheduledRequest(tuple(prompt), new, priority))

    @precondition(lambda self: self.scheduler.sequences)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        sequence = data.draw(st.sampled_from(self.alive()))
        self.scheduler.finish(sequence)
        assert self.plan is not None or sequence.state is State.FINISHED

    @precondition(lambda self: self.plan is None and self.scheduler.sequences)
    @rule(data=st.data())
    def fork(self, data) -> None:
        parent = data.draw(st.sampled_from(self.alive()))
        child = self.scheduler.fork(parent)
        if not parent.pending and len(child.tokens) < MAX_SEQ:
            self.server.advance(child, data.draw(st.integers(0, 1)))

    @precondition(lambda self: self.plan is None)
    @rule()
    def make_plan(self) -> None:
        self.server.poison()
        self.plan = self.scheduler.plan()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def commit(self) -> None:
        for sequence, logits in self.server.run(self.plan).items():
            self.server.advance(sequence, int(logits.argmax()))
        self.plan = None

    @precondition(lambda self: self.plan is not None)
    @rule(spoilt=st.booleans())
    def fail(self, spoilt: bool) -> None:
        taking_part = {row.sequence for row in self.plan.rows}
        if spoilt and self.plan.rows:
            self.server.engine.fail_at = {self.server.engine.steps + 1}
            try:
                self.server.executor.launch(self.plan)
            except Exception as error:
                assert "told to fail" in str(error)
        died = self.scheduler.fail(self.plan)
        assert taking_part <= {sequence.id for sequence in died}
        assert all(sequence.state is State.FINISHED for sequence in died)
        self.plan = None

    @precondition(lambda self: self.plan is None)
    @rule()
    def run_for_a_while(self) -> None:
        for _ in range(6):
            self.server.step()

    @invariant()
    def pools_add_up(self) -> None:
        if hasattr(self, "server"):
            self.scheduler.check_integrity()
            manager = self.server.manager
            assert manager.pool.used + manager.pool.free == manager.pool.num_blocks
            assert manager.slots.used + manager.slots.free == manager.slots.num_slots

    def teardown(self) -> None:
        if hasattr(self, "server"):
            if self.plan is not None:
                self.commit()
            self.server.run_all()
            manager = self.server.manager
            assert manager.pool.available == manager.pool.num_blocks
            assert manager.slots.used == self.scheduler.host_bytes == 0


SchedulerMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
