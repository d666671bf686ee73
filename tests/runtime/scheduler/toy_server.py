"""A scheduler over the toy engine, with free memory poisoned before each step and everything checked after it."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.blocks import BlockManager, CacheNeeds
from hybridge.runtime.blocks.block_prefix_cache import block_cache
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.scheduler import Policy, ScheduledSequence, Scheduler, SchedulerSettings, StepPlan
from hybridge.runtime.scheduler.policy import Fcfs
from hybridge.runtime.serving.executor import StepExecutor
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_logits


class ToyServer:
    """Greedy decoding, each token compared with the one of the same tokens alone."""

    def __init__(
        self,
        config: RuntimeConfig,
        sizes: PoolSizes,
        max_tokens: int = 16,
        max_rows: int = 4,
        policy: Policy | None = None,
        swap_bytes: int = 0,
        watermark: float = 0.0,
        pad_to: int = 1,
    ) -> None:
        self.config = config
        self.engine = ToyPagedEngine(config, max_tokens + pad_to, max_rows + pad_to, pad_to)
        self.engine.allocate_pools(sizes)
        needs = CacheNeeds.of_model(config)
        self.manager = BlockManager(sizes.block_size, needs, max_rows, config.max_seq_len, block_cache(sizes, needs))
        settings = SchedulerSettings(
            max_tokens,
            max_rows,
            config.max_seq_len,
            policy or Fcfs(),
            swap_bytes,
            self.engine.block_bytes(sizes.block_size),
            self.engine.slot_bytes,
            watermark,
        )
        self.scheduler = Scheduler(self.manager, settings)
        self.executor = StepExecutor(self.engine, self.manager, self.scheduler)

    def poison(self) -> None:
        """Overwrite all unowned memory. The next plan still copies from slots that were forked and freed."""
        pool, slots = self.manager.pool, self.manager.slots
        blocks = [b for b in range(pool.num_blocks) if not pool.references(b)]
        sources = {source for source, _ in self.scheduler._slot_copies}
        free = [s for s in range(slots.num_slots) if not slots.in_use(s) and s not in sources]
        self.engine.poison(blocks, free)

    def run(self, plan: StepPlan) -> dict[ScheduledSequence, np.ndarray]:
        """Execute and commit ``plan``; the logits of those that sample and still live."""
        sampling = [self.scheduler.sequences[row.sequence] for row in plan.rows if row.samples]
        result = self.executor.launch(plan)
        self.scheduler.commit(plan)
        self.scheduler.check_integrity()
        live = {}
        for index, sequence in enumerate(sampling):
            logits = result.logits(index)
            np.testing.assert_array_equal(logits, toy_logits(self.config, sequence.tokens))
            if sequence.id in self.scheduler.sequences:
                live[sequence] = logits
        return live

    def step(self) -> StepPlan | None:
        """Plan, run, and give every sequence its next token or its end."""
        self.poison()
        plan = self.scheduler.plan()
        if plan is not None:
            for sequence, logits in self.run(plan).items():
                self.advance(sequence, int(logits.argmax()))
        return plan

    def advance(self, sequence: ScheduledSequence, token: int) -> None:
        """Take the token; after the last one the sequence ends."""
        sequence.append(token)
        request = sequence.request
        if len(sequence.tokens) == len(request.prompt_ids) + request.max_new_tokens:
            self.scheduler.finish(sequence)

    def run_all(self, limit: int = 10_000) -> list[StepPlan]:
        """Steps until all requests have ended."""
        plans: list[StepPlan] = []
        while self.scheduler.sequences:
            plan = self.step()
            assert plan is not None and len(plans) < limit, "the scheduler is stuck"
            plans.append(plan)
        return plans
