"""Any history of requests over the prefix cache: what it has is exactly what its tokens make it, what is pinned stays,
and its events tell of everything. Beams, several answers, speculation, failures, tenants, host memory and evictions are
mixed; the requests' own answers are checked as in every other history of a loop."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation import Request
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.pinned import PinnedPrefix
from hybridge.runtime.serving.request import ServingRequest
from tests.runtime.prefix_cache.fake_memory import tokens_of
from tests.runtime.prefix_cache.replica import Replica
from tests.runtime.serving.test_loop_machine import SMALL, LoopMachine, SubmittedRequest
from tests.runtime.toy_paged_engine import toy_kv, toy_state
from tests.support.effort import examples

SETTINGS = st.builds(
    PrefixCacheSettings,
    policy=st.sampled_from(["lru", "value"]),
    cached_states=st.sampled_from([0, 1, 3, None]),
    prompt_checkpoints=st.sampled_from(["early", "branches", "none"]),
    decode_interval=st.sampled_from([None, 1, 4]),
    host_bytes=st.sampled_from([0, 0, 60, 400, 100_000]),
)


class CacheMachine(LoopMachine):
    """``speculates``: whether the loop tries draft tokens."""

    speculates = False

    @initialize(cache=SETTINGS, mode=st.sampled_from(["snapshot", "replay"]), takes=st.booleans(), **SMALL)
    def start(self, kind, memory, rows, budget, swap_bytes, policy, cache, mode, takes, ahead, pattern) -> None:
        mode, self.takes = mode if self.speculates else None, takes
        super().start(kind, memory, rows, budget, swap_bytes, None, policy, cache, mode, ahead, 1, pattern)
        self.pins: list[PinnedPrefix] = []
        self.names = 0
        self.replica = Replica()

    def build(self, kind, rows, budget, ahead, pad_to=1) -> None:
        super().build(kind, rows, budget, ahead, pad_to)
        self.engine.takes = self.takes

    def put(self, prompt: list[int], params: SamplingParams, new: int, priority: int) -> None:
        """Two tenants, whose prompts look the same."""
        tenant = "ab"[new % 2]
        try:
            id_ = self.loop.add(ServingRequest(Request(tuple(prompt), params, new), 0, priority, tenant))
        except RequestError as error:
            assert "the pools can hold" in str(error) and (params.beam_width or self.pins)
            return
        self.requests[id_] = SubmittedRequest(prompt, params, new)

    @rule(count=st.integers(1, 3), leaves=st.booleans())
    def evict(self, count: int, leaves: bool) -> None:
        cache = self.loop.prefix_cache
        if self.engine.breaks == ("step", True):
            # An eviction waits for the running step: only the loop can end an interrupted one.
            self.quietly(self.loop.settle)
        for _ in range(count):
            (cache.evict_kv if leaves else cache.evict_state)()

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """Something that the cache has, of any length, while others run."""
        tree = self.loop.prefix_cache.tree
        known = [
            (name, tokens_of(node))
            for name, root in sorted(tree.namespaces().items())
            for node in root.walk()
            if node.attached and (node.state is not None or not tree.has_state)
        ]
        if not known:
            return
        tenant, tokens = data.draw(st.sampled_from(sorted(known)))
        self.names += 1
        prefix = PinnedPrefix(f"prefix {self.names}", tokens, tenant)
        try:
            self.pins.append(self.loop.served_cache.pinned.add(prefix, lambda: None))
        except RequestError as error:
            assert "expected one that leaves" in str(error)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.unpin(data.draw(st.sampled_from(self.pins)))

    def unpin(self, prefix: PinnedPrefix) -> None:
        self.pins.remove(prefix)
        self.loop.served_cache.pinned.drop(prefix.name)

    @invariant()
    def honest(self) -> None:
        if not hasattr(self, "loop"):
            return
        tree, engine, size = self.loop.prefix_cache.tree, self.engine, self.loop.shape.block_size
        for node in tree.walk():
            if not node.attached:
                continue
            tokens = tokens_of(node)
            if tree.has_kv:
                held = engine.kv[tree.blocks_of(node)].ravel()[: node.end]
                assert held.tolist() == toy_kv(np.array(tokens), np.arange(node.end)).tolist(), (size, tokens)
            if node.state is not None:
                assert engine.states[node.state].tolist() == toy_state(tokens).tolist(), tokens
        for prefix in self.pins:
            match = tree.match(key_from_tokens(prefix.token_ids), prefix.namespace)
            assert match.length == prefix.length, "a pinned prefix is gone"
        capacity, manager = self.loop.scheduler.capacity, self.loop.scheduler.manager
        longest = manager.most_blocks(self.loop.shape.max_seq_len, self.loop.shape.max_tokens)
        assert capacity.blocks >= longest and capacity.slots >= manager.needs.state, "a sequence misses what is pinned"
        self.replica.follow(tree.events.drain())
        self.replica.check(tree)
        self.count_bytes()

    def count_bytes(self) -> None:
        """The reported bytes are those of the nodes, here and on the host."""
        tree, pools, host = self.loop.prefix_cache.tree, self.loop.pools, self.loop.served_cache.host
        report = self.loop.served_cache.report(pools.cached_bytes)
        held = {block for node in tree.walk() for block in node.blocks}
        states = [node for node in tree.walk() if node.state is not None]
        assert report.kv_bytes == len(held) * pools.block_bytes
        assert report.state_bytes == len(states) * pools.cached_bytes and report.states == len(states)
        if host is not None:
            blocks = {block for node in host.tree.walk() for block in node.blocks}
            copies = [host._slots[node.state] for node in host.tree.walk() if node.state is not None]
            copies += [host._blocks[block] for block in blocks]
            assert host.nbytes == sum(copy.nbytes for copy in copies) <= self.loop.prefix_cache.settings.host_bytes

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        super().teardown()
        self.honest()
        for prefix in list(self.pins):
            self.unpin(prefix)
        cache = self.loop.prefix_cache
        cache.tree.clear()
        self.honest()
        assert not (cache.tree.nodes or cache.tree.states or cache.pool.used or cache.slots.used)
        assert not cache.tree.namespaces()


class SpeculatingCacheMachine(CacheMachine):
    speculates = True


@pytest.mark.parametrize("machine", [CacheMachine, SpeculatingCacheMachine], ids=lambda machine: machine.__name__)
def test_the_cache_is_honest_in_any_history(machine: type[CacheMachine]) -> None:
    case = machine.TestCase
    case.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
    case().runTest()
