"""Blocks and slots that remember which tokens were written to them, with the books of a pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import tokens_from_key

EMPTY = -1


class FakeBlocks:
    """``count`` blocks of ``size`` tokens; a free block holds no token."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.content = np.full((count, size), EMPTY)
        self.references = [0] * count

    @property
    def free(self) -> list[int]:
        return [block for block, references in enumerate(self.references) if not references]

    def allocate(self) -> int | None:
        free = self.free
        if not free:
            return None
        self.references[free[0]] = 1
        return free[0]

    def retain(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert self.references[block] > 0, "a free block was retained"
            self.references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert self.references[block] > 0, "a free block was released"
            self.references[block] -= 1
            if not self.references[block]:
                self.content[block] = EMPTY


class FakeSlots:
    """``count`` slots, each with the tokens that its state has consumed."""

    def __init__(self, count: int) -> None:
        self.consumed: list[tuple[int, ...] | None] = [None] * count

    def allocate(self, consumed: tuple[int, ...]) -> int | None:
        if None not in self.consumed:
            return None
        slot = self.consumed.index(None)
        self.consumed[slot] = consumed
        return slot

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            assert self.consumed[slot] is not None, "a free slot was released"
            self.consumed[slot] = None


def written_blocks(blocks: FakeBlocks, tokens: Sequence[int], shared: Sequence[int] = ()) -> list[int] | None:
    """Blocks that hold ``tokens``: ``shared`` (whole ones) as they are, the rest fresh; None when none are left."""
    blocks.retain(shared)
    held = list(shared)
    for start in range(len(shared) * blocks.size, len(tokens), blocks.size):
        block = blocks.allocate()
        if block is None:
            blocks.release(held)
            return None
        part = tokens[start : start + blocks.size]
        blocks.content[block, : len(part)] = part
        held.append(block)
    return held


def tokens_of(node: Node) -> tuple[int, ...]:
    """The tokens from the root to the end of ``node``."""
    return tuple(int(token) for part in node.path() for token in tokens_from_key(part.edge))


def check_tree(tree: RadixTree, blocks: FakeBlocks, slots: FakeSlots, other_blocks: Sequence[int] = ()) -> None:
    """Every claim of the tree against the memory, and every reference accounted for.

    other_blocks: references that others hold, one entry each.
    """
    references = [0] * len(blocks.references)
    for block in other_blocks:
        references[block] += 1
    owners: list[int] = []
    count = 0
    for node in tree.walk():
        assert all(child.parent is node and child.first == first for first, child in node.children.items())
        if not node.attached:
            continue
        assert node.locks >= sum(child.locks for child in node.children.values())
        count += 1
        assert node.edge, "a node without tokens"
        for block in node.blocks:
            references[block] += 1
        tokens = tokens_of(node)
        assert len(tokens) == node.end
        if tree.has_kv:
            table = tree.blocks_of(node)
            stored = blocks.content[table].ravel()[: node.end]
            assert tuple(stored) == tokens, "KV blocks that hold other tokens than the path says"
        if node.state is not None:
            owners.append(node.state)
            assert slots.consumed[node.state] == tokens, "a state that has consumed other tokens than the path says"
        elif tree.has_state and not node.locks:
            assert len(node.children) > 1, "a tombstone without use"
    assert references == blocks.references
    assert len(set(owners)) == len(owners) == tree.states
    assert count == tree.nodes
