"""The tree under random histories: it never claims what the memory does not hold, loses no block and no slot, and tells
of all that comes and goes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from hybridge.runtime.prefix_cache.eviction_policy import CostAwareEviction, LruEviction
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.fake_memory import FakeBlocks, FakeSlots, check_tree, tokens_of, written_blocks
from tests.runtime.prefix_cache.replica import Replica
from tests.support.effort import examples

# Few tokens and few lengths, so that sequences share prefixes and part inside nodes and blocks.
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)
NAMESPACES = st.sampled_from(["", "tenant"])
BLOCKS, SLOTS = 40, 6


class TreeMachine(RuleBasedStateMachine):
    """Requests that look up, insert, finish and are preempted, in any order."""

    has_kv = has_state = True
    block_size = 4
    locks = Bundle("locks")

    @initialize(value=st.booleans())
    def start(self, value: bool) -> None:
        self.blocks, self.slots = FakeBlocks(BLOCKS, self.block_size), FakeSlots(SLOTS)
        policy = CostAwareEviction() if value else LruEviction()
        self.tree = RadixTree(self.blocks, self.slots, self.block_size, self.has_kv, self.has_state, policy)
        self.held: list[tuple[Node, tuple[int, ...]]] = []
        self.replica = Replica()

    @rule(target=locks, tokens=TOKENS, namespace=NAMESPACES, with_state=st.booleans(), reuse=st.booleans())
    def insert(self, tokens: tuple[int, ...], namespace: str, with_state: bool, reuse: bool) -> Any:
        """A request computes ``tokens``, on blocks of the tree where it can, and inserts them with their state."""
        key = key_from_tokens(tokens)
        match = self.tree.match(key, namespace)
        whole = match.length // self.block_size
        shared = self.tree.blocks_of(match.node, match.length)[:whole] if reuse and self.has_kv else []
        own: list[int] | None = written_blocks(self.blocks, tokens, shared) if self.has_kv else []
        if own is None:
            return None
        slot = self.slots.allocate(tokens) if with_state and self.has_state else None
        node, stored = self.tree.insert(key, own, slot, namespace)
        self.tree.lock(node)
        self.blocks.release(own)
        if slot is not None and not stored:
            self.slots.release([slot])
        assert tokens_of(node) == tokens
        assert stored == (slot is not None) or node.state is not None
        found = self.tree.match(key, namespace)
        assert found.known == len(tokens)
        if node.state is not None or not self.has_state:
            assert found.length == len(tokens)
        self.held.append((node, tokens))
        return (node, tokens)

    @rule(lock=consumes(locks), halves=st.booleans())
    def finish(self, lock: Any, halves: bool) -> None:
        """A request ends; some let the state go before the KV."""
        if lock is None:
            return
        node, tokens = lock
        assert tokens_of(node) == tokens, "a locked node moved"
        self.held.remove(lock)
        if halves:
            self.tree.unlock_state(node)
            self.tree.unlock_kv(node)
        else:
            self.tree.unlock(node)

    @rule(tokens=TOKENS, namespace=NAMESPACES)
    def match(self, tokens: tuple[int, ...], namespace: str) -> None:
        """What a lookup finds is what a search through all sequences finds."""
        root = self.tree.namespaces().get(namespace)
        nodes = [node for node in root.walk() if node.attached] if root else []
        known = max((_common(tokens_of(node), tokens) for node in nodes), default=0)
        if self.has_state:
            ends = [tokens_of(node) for node in nodes if node.state is not None]
            length = max((len(end) for end in ends if tokens[: len(end)] == end), default=0)
        else:
            length = known
        found = self.tree.match(key_from_tokens(tokens), namespace)
        assert (found.known, found.length) == (known, length)
        if found.length:
            assert tokens_of(found.node)[: found.length] == tokens[: found.length]
            self.tree.touch(found.node)

    @rule()
    def evict_state(self) -> None:
        free = [node for node in self.tree.walk() if node.state is not None and not node.state_locks]
        assert self.tree.evict_state() == bool(free)

    @rule()
    def evict_kv(self) -> None:
        free = [node for node in self.tree.walk() if node.attached and not node.children and not node.locks]
        assert self.tree.evict_kv() == bool(free)

    @invariant()
    def honest(self) -> None:
        check_tree(self.tree, self.blocks, self.slots)
        self.replica.follow(self.tree.events.drain())
        self.replica.check(self.tree)
        for node, tokens in self.held:
            assert tokens_of(node) == tokens

    def teardown(self) -> None:
        for node, _ in self.held:
            self.tree.unlock(node)
        self.tree.clear()
        assert self.tree.nodes == self.tree.states == 0
        assert len(self.blocks.free) == BLOCKS and self.slots.consumed == [None] * SLOTS


class PureAttentionMachine(TreeMachine):
    has_state = False


class PureRecurrentMachine(TreeMachine):
    has_kv = False


class WholeBlocksMachine(TreeMachine):
    block_size = 1


@pytest.mark.parametrize(
    "machine", [TreeMachine, PureAttentionMachine, PureRecurrentMachine, WholeBlocksMachine], ids=lambda m: m.__name__
)
def test_random_histories(machine: type[TreeMachine]) -> None:
    case = machine.TestCase
    case.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
    case().runTest()


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
