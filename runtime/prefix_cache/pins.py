"""Parts of the tree that are never evicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree


@dataclass(frozen=True, eq=False)
class Pin:
    """A node whose state and KV, with all KV before it, are not evicted."""

    node: Node
    blocks: tuple[int, ...]


class Pins:
    """Has its own references to the blocks, so that they do not count as evictable."""

    def __init__(self, tree: RadixTree, pool: BlockPool) -> None:
        self._tree, self._pool = tree, pool
        self._pins: dict[Pin, None] = {}

    def add(self, node: Node) -> Pin:
        """Pin ``node`` until ``remove``; a node can be pinned more than once.

        Where states on the way end inside a block, each has a copy of it: the pin needs one of them.
        """
        self._tree.unite(node, set(self.blocks()))
        pin = Pin(node, tuple(dict.fromkeys(block for part in node.path() for block in part.blocks)))
        self._tree.lock(node)
        self._pool.retain(pin.blocks)
        self._pins[pin] = None
        return pin

    def remove(self, pin: Pin) -> None:
        """Let it be evicted like any other."""
        del self._pins[pin]
        self._pool.release(pin.blocks)
        self._tree.unlock(pin.node)

    def blocks(self) -> Iterator[int]:
        """References, one entry each."""
        return (block for pin in self._pins for block in pin.blocks)

    def counts(self) -> tuple[int, int]:
        """Number of blocks and slots that are pinned."""
        states = {pin.node for pin in self._pins if pin.node.state is not None}
        return len(set(self.blocks())), len(states)
