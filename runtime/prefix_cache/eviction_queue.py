"""Nodes in the order in which they should go, cheapest loss first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hybridge.runtime.prefix_cache.node import Node

# Stale entries are swept out once they outnumber the live ones by this much.
_SLACK = 64
# Of nodes whose worth may have changed all at once, so many are looked at then, and so many more with each push: a tree
# of 100,000 nodes keeps nobody waiting.
_AT_ONCE, _WITH_EACH = 1024, 64


class EvictionQueue:
    """A heap with lazy removal: ``push`` whenever a node becomes a candidate, its worth changes, or it leaves the tree.

    worth: what losing the node costs; the smallest goes first. candidate: whether the node may go at present.
    """

    def __init__(self, worth: Callable[[Node], float], candidate: Callable[[Node], bool]) -> None:
        self._worth, self._candidate = worth, candidate
        self._heap: list[tuple[float, int, Node]] = []
        self._latest: dict[Node, int] = {}
        self._serial = 0
        # Whose worth may have changed, the next one to look at last.
        self._changed: list[Node] = []

    def __len__(self) -> int:
        """Nodes that the queue knows, among them all that could go at present."""
        return len(self._latest)

    def push(self, node: Node) -> None:
        """Note the node with its worth as it is now if it may go, else forget it; O(log n)."""
        self._note(node)
        if self._changed:
            self._look_again(_WITH_EACH)
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

    def reorder(self) -> None:
        """The worth of all nodes has changed: those longest known are looked at now, the others by and by."""
        self._changed = list(self._latest)[::-1]
        self._look_again(_AT_ONCE)

    def _look_again(self, count: int) -> None:
        for _ in range(min(count, len(self._changed))):
            node = self._changed.pop()
            if node in self._latest:
                self._note(node)

    def _note(self, node: Node) -> None:
        if self._candidate(node):
            self._serial += 1
            self._latest[node] = self._serial
            heapq.heappush(self._heap, (self._worth(node), self._serial, node))
        else:
            self._latest.pop(node, None)
