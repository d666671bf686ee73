"""Nodes in the order of eviction, the least loss first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hybridge.runtime.prefix_cache.node import Node

# Stale entries are swept out once they outnumber the live ones by this much.
_SLACK = 64


class EvictionQueue:
    """A heap with lazy removal: ``push`` whenever a node becomes evictable, its value changes, or it leaves the tree.

    value: what losing the node costs; the smallest goes first. evictable: whether the node may go at present.
    """

    def __init__(self, value: Callable[[Node], float], evictable: Callable[[Node], bool]) -> None:
        self._value, self._evictable = value, evictable
        self._heap: list[tuple[float, int, Node]] = []
        self._latest: dict[Node, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Nodes in the queue, among them all that may be evicted at present."""
        return len(self._latest)

    def push(self, node: Node) -> None:
        """Enter the node with its present value if it may be evicted, else remove it; O(log n)."""
        if self._evictable(node):
            self._serial += 1
            self._latest[node] = self._serial
            heapq.heappush(self._heap, (self._value(node), self._serial, node))
        else:
            self._latest.pop(node, None)
        if len(self._heap) > 2 * len(self._latest) + _SLACK:
            self._heap = [entry for entry in self._heap if self._latest.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        """Take the evictable node of the least value, or None if there is none."""
        while self._heap:
            value, serial, node = heapq.heappop(self._heap)
            if self._latest.get(node) != serial:
                continue
            if self._evictable(node) and self._value(node) > value:
                self.push(node)  # its value has risen since: the state above it was evicted
                continue
            del self._latest[node]
            if self._evictable(node):
                return node
        return None

    def peek(self) -> Node | None:
        """The next element of ``pop``, which stays in the queue."""
        node = self.pop()
        if node is not None:
            self.push(node)
        return node
