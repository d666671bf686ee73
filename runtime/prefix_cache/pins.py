"""Parts of the tree that are never evicted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree


@dataclass(eq=False)
class Pin:
    """A node whose state and KV, with all KV before it, are not evicted.

    blocks: those that are held, more than one where a block was copied on the way. namespace, key, table, state: what
    the tree needs to have the node again, the table with one block for each block_size tokens.
    """

    node: Node
    blocks: tuple[int, ...]
    namespace: str
    key: bytes
    table: Sequence[int]
    state: int | None


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
        blocks = tuple(dict.fromkeys(block for part in node.path() for block in part.blocks))
        pin = Pin(node, blocks, node.root.namespace, node.key, self._tree.blocks_of(node), node.state)
        self._tree.lock(node)
        self._pool.retain(pin.blocks)
        self._pins[pin] = None
        return pin

    def states(self) -> set[int]:
        """Slots of their states."""
        return {pin.state for pin in self._pins if pin.state is not None}

    def move(self, tree: RadixTree) -> None:
        """Pin the same in ``tree``, which is empty; of all memory only the slots ``states`` are in use."""
        self._tree = tree
        for pin in self._pins:
            self._pool.take(pin.blocks)
            pin.node, _ = tree.insert(pin.key, pin.table, pin.state, pin.namespace)
            tree.lock(pin.node)

    def keep(self, pins: Collection[Pin]) -> None:
        """Remove all others."""
        for pin in [pin for pin in self._pins if pin not in pins]:
            self.remove(pin)

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
