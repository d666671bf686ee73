"""A view of a serving loop's memory, without any tokens, for monitoring."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridge.runtime.scheduler.sequence import State

if TYPE_CHECKING:
    from hybridge.runtime.prefix_cache.node import Node
    from hybridge.runtime.prefix_cache.radix_cache import RadixCache
    from hybridge.runtime.serving.loop import ServingLoop


@dataclass(frozen=True)
class PoolUse:
    """Blocks, or slots, of a pool: those of running sequences, those that only the prefix cache holds, and the rest."""

    total: int
    running: int
    cached: int

    @property
    def free(self) -> int:
        """Number of unused blocks or slots."""
        return self.total - self.running - self.cached


@dataclass(frozen=True)
class SequenceView:
    """tokens: of prompt and answer so far; computed: those in memory; cached: those found in the prefix cache."""

    number: int
    running: bool
    tokens: int
    computed: int
    cached: int


@dataclass(frozen=True)
class NodeView:
    """A node of the prefix tree. parent: its place in the list of nodes, None below a root.

    tokens: of this node; end: from the beginning. has_state: a sequence can continue here. in_use: by a running
    sequence, or pinned.
    """

    parent: int | None
    tokens: int
    end: int
    has_state: bool
    uses: int
    in_use: bool


@dataclass(frozen=True)
class MemoryView:
    """nodes: parents come before their children; None without a radix tree. hidden_nodes: those left out."""

    block_size: int
    blocks: PoolUse
    slots: PoolUse
    sequences: tuple[SequenceView, ...]
    nodes: tuple[NodeView, ...] | None
    hidden_nodes: int


def memory_view(loop: ServingLoop, most_nodes: int = 200, most_sequences: int = 64) -> MemoryView:
    """The current contents; call it between two steps."""
    loop.settle()
    manager = loop.scheduler.manager
    running = [each for each in loop.scheduler.sequences.values() if each.state is State.RUNNING]
    blocks = {block for each in running for block in each.memory.owned_blocks}
    slots = {slot for each in running for slot in each.memory.slots}
    sequences = [
        SequenceView(
            each.id, each.state is State.RUNNING, len(each.tokens), each.memory.length, each.cached_tokens or 0
        )
        for each in list(loop.scheduler.sequences.values())[:most_sequences]
    ]
    nodes, hidden = (None, 0) if loop.prefix_cache is None else _nodes(loop.prefix_cache, most_nodes)
    pool, states = manager.pool, manager.slots
    return MemoryView(
        manager.block_size,
        PoolUse(pool.num_blocks, len(blocks), pool.used - len(blocks)),
        PoolUse(states.num_slots, len(slots), states.used - len(slots)),
        tuple(sequences),
        nodes,
        hidden,
    )


def _nodes(cache: RadixCache, most: int) -> tuple[tuple[NodeView, ...], int]:
    """Up to ``most`` nodes from the roots on, level by level, and how many are left out."""
    tree = cache.tree
    waiting: deque[tuple[int | None, Node]] = deque(_children(None, tree.namespaces().values()))
    found: list[NodeView] = []
    while waiting and len(found) < most:
        parent, node = waiting.popleft()
        tokens = node.end - node.start
        found.append(NodeView(parent, tokens, node.end, node.state is not None, node.uses, node.locks > 0))
        waiting.extend(_children(len(found) - 1, [node]))
    return tuple(found), tree.nodes - len(found)


def _children(place: int | None, parents: Iterable[Node]) -> Iterable[tuple[int | None, Node]]:
    return [(place, child) for parent in parents for child in parent.children.values()]
