"""Nodes in the order in which they should go, cheapest loss first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from runtime.prefix_cache.node import Node

# Stale entries are swept out once they outnumber the live ones by this much.
_SLACK = 64


class EvictionQueue:
    """A heap with lazy removal: ``push`` whenever a node becomes a candidate or its worth changes.

    worth: what losing the node costs; the smallest goes first. candidate: whether the node may go at present.
    """

    def __init__(self, worth: Callable[[Node], float], candidate: Callable[[Node], bool]) -> None:
        self._worth, self._candidate = worth, candidate
        self._heap: list[tuple[float, int, Node]] = []
        self._latest: dict[Node, int] = {}
        self._serial = 0

    def push(self, node: Node) -> None:
        """Note the node with its worth as it is now, if it may go; O(log n)."""
        if not self._candidate(node):
            self._latest.pop(node, None)
            return
        self._serial += 1
        self._latest[node] = self._serial
        heapq.heappush(self._heap, (self._worth(node), self._serial, node))
        if len(self._heap) > 2 * len(self._latest) + _SLACK:
            self._heap = [entry for entry in self._heap if self._latest.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        """Take the candidate of the least worth, or None when there is none."""
        while self._heap:
            worth, serial, node = heapq.heappop(self._heap)
            if self._latest.get(node) != serial:
                continue
            if self._candidate(node) and self._worth(node) > worth:
                self.push(node)  # its worth has risen since: what it would be resumed from has gone
                continue
            del self._latest[node]
            if self._candidate(node):
                return node
        return None

    def peek(self) -> Node | None:
        """What ``pop`` would take, which stays."""
        node = self.pop()
        if node is not None:
            self.push(node)
        return node

    def reorder(self, nodes: Iterable[Node]) -> None:
        """Begin again with ``nodes``: the worth of all of them has changed."""
        self._heap, self._latest = [], {}
        for node in nodes:
            if self._candidate(node):
                self._serial += 1
                self._latest[node] = self._serial
                self._heap.append((self._worth(node), self._serial, node))
        heapq.heapify(self._heap)

    def candidates(self) -> set[Node]:
        """The nodes that could go at present."""
        return {node for node in self._latest if self._candidate(node)}
