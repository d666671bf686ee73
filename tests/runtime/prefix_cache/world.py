"""A radix tree over fake memory, for requests that compute, insert and finish at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.fake_memory import FakeBlocks, FakeSlots, check_tree, tokens_of, written_blocks

BLOCK_SIZE = 16


class World:
    """A tree over fake memory, and requests that start and finish at once."""

    def __init__(self, block_size: int = BLOCK_SIZE, **options: object) -> None:
        self.blocks, self.slots = FakeBlocks(400, block_size), FakeSlots(140)
        self.tree = RadixTree(self.blocks, self.slots, block_size, **options)  # type: ignore[arg-type]

    def insert(self, tokens: Sequence[int], state: bool = True, namespace: str = "") -> Node:
        """Compute ``tokens`` on blocks of their own, insert them, and lock them."""
        own = written_blocks(self.blocks, tokens)
        assert own is not None
        slot = self.slots.allocate(tuple(tokens)) if state else None
        node, stored = self.tree.insert(key_from_tokens(tokens), own, slot, namespace)
        self.tree.lock(node)
        self.blocks.release(own)
        if slot is not None and not stored:
            self.slots.release([slot])
        check_tree(self.tree, self.blocks, self.slots)
        return node

    def keep(self, tokens: Sequence[int], state: bool = True, namespace: str = "") -> None:
        """Insert ``tokens`` and release them."""
        self.tree.unlock(self.insert(tokens, state, namespace))
        check_tree(self.tree, self.blocks, self.slots)

    def resumed(self, tokens: Sequence[int], namespace: str = "") -> int:
        """Tokens that a request for ``tokens`` need not compute."""
        return self.tree.match(key_from_tokens(tokens), namespace).length

    def node(self, tokens: Sequence[int], namespace: str = "") -> Node:
        """The node with the state after exactly ``tokens``."""
        node = self.tree.match(key_from_tokens(tokens), namespace).node
        assert tokens_of(node) == tuple(tokens) and node.state is not None
        return node

    def touch(self, tokens: Sequence[int], namespace: str = "") -> None:
        """A request begins with the state after ``tokens``."""
        self.tree.touch(self.node(tokens, namespace))

    def gone(self, evict: Callable[[], bool]) -> list[tuple[int, ...]]:
        """The sequences of the states that go, in order, until ``evict`` finds none."""
        order: list[tuple[int, ...]] = []
        while True:
            before = self.sequences()
            if not evict():
                return order
            check_tree(self.tree, self.blocks, self.slots)
            order += sorted(before - self.sequences())

    def sequences(self) -> set[tuple[int, ...]]:
        """All tokens up to each state."""
        return {tokens_of(node) for node in self.tree.walk() if node.state is not None}


def run(start: int, stop: int) -> tuple[int, ...]:
    """Tokens that are their own positions."""
    return tuple(range(start, stop))
