"""Parts of the tree that stay until they are let go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree


@dataclass(frozen=True, eq=False)
class Pin:
    """A node whose state, and whose KV with all before it, stays."""

    node: Node
    blocks: tuple[int, ...]


class Pins:
    """Has references to the blocks of its own, so that nobody counts them among those that could be given up."""

    def __init__(self, tree: RadixTree, pool: BlockPool) -> None:
        self._tree, self._pool = tree, pool
        self._pins: dict[Pin, None] = {}

    def add(self, node: Node) -> Pin:
        """Keep ``node`` until ``remove``; a node can be kept more than once.

        Where states on the way are after a part of a block, each has a copy of it: one is enough to keep.
        """
        self._tree.unite(node, set(self.held_blocks()))
        pin = Pin(node, tuple(dict.fromkeys(block for part in node.path() for block in part.blocks)))
        self._tree.lock(node)
        self._pool.retain(pin.blocks)
        self._pins[pin] = None
        return pin

    def remove(self, pin: Pin) -> None:
        """Let it go like any other."""
        del self._pins[pin]
        self._pool.release(pin.blocks)
        self._tree.unlock(pin.node)

    def held_blocks(self) -> Iterator[int]:
        """References, one entry each."""
        return (block for pin in self._pins for block in pin.blocks)

    def held(self) -> tuple[int, int]:
        """Blocks and slots that stay."""
        states = {pin.node for pin in self._pins if pin.node.state is not None}
        return len(set(self.held_blocks())), len(states)
