"""Sequences of tokens as a radix tree, with the KV blocks that hold them.

A node has a run of tokens that all sequences below it share; it ends where sequences branch, and wherever a sequence
ended. ``RadixTree`` adds states and eviction.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from hybridge.runtime.prefix_cache.block_runs import block_span, blocks_of_path, join_blocks, split_blocks
from hybridge.runtime.prefix_cache.events import Change, Event, EventLog
from hybridge.runtime.prefix_cache.node import Node, Root
from hybridge.runtime.prefix_cache.resources import BlockReferences
from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES, common_length, cut, key_length


@dataclass(frozen=True)
class TreeMatch:
    """The part of a key that is in the tree.

    node, length: where a sequence can resume; ``length`` is ``node.end``, or less for a model without recurrent
    layers, which can resume inside a node. known: tokens whose KV the tree has. branches: whether the key leaves the
    tree inside a node, where an insert would split it.
    """

    node: Node
    length: int
    known: int
    branches: bool


class TokenTree:
    """Nodes by namespace. ``count`` is the number of nodes without the roots.

    blocks: holds a reference to each block of each node, unless ``has_kv`` is false. has_state: whether a sequence can
    resume only where there is a state.
    """

    def __init__(
        self, blocks: BlockReferences, block_size: int, has_kv: bool, has_state: bool, events: EventLog
    ) -> None:
        self._blocks, self._block_size, self._events = blocks, block_size, events
        self._has_kv, self._has_state = has_kv, has_state
        self._roots: dict[str, Root] = {}
        self.count = 0

    @property
    def roots(self) -> dict[str, Root]:
        """The root of each namespace that has any tokens."""
        return dict(self._roots)

    def latest_namespaces(self) -> Iterator[str]:
        """The namespaces that have any tokens, latest first; the tree must not change during the iteration."""
        return reversed(self._roots)

    def walk(self) -> Iterator[Node]:
        """All nodes, roots included, in no particular order."""
        for root in self._roots.values():
            yield from root.walk()

    def match(self, key: bytes, namespace: str) -> TreeMatch:
        """The deepest place of ``key`` where a sequence can resume."""
        root = self._roots.get(namespace)
        if root is None:
            return TreeMatch(Root(namespace), 0, 0, False)
        node: Node = root
        resume, known, branches = node, 0, False
        while True:
            child = node.children.get(key[known * TOKEN_BYTES : (known + 1) * TOKEN_BYTES])
            if child is None:
                break
            known += common_length(child.edge, key, known)
            if known < child.end:
                branches = known < key_length(key)
                if not self._has_state:
                    return TreeMatch(child, known, known, branches)
                break
            node = child
            if node.state is not None or not self._has_state:
                resume = node
        return TreeMatch(resume, resume.end, known, branches)

    def grow(self, key: bytes, blocks: Sequence[int], namespace: str) -> Node:
        """The node that ends at ``key``, made where it was missing, with those of ``blocks`` that hold its tokens."""
        length = key_length(key)
        node: Node = self._roots.get(namespace) or Root(namespace)
        if length and isinstance(node, Root):
            self._roots[namespace] = node
        while node.end < length:
            child = node.children.get(key[node.end * TOKEN_BYTES : (node.end + 1) * TOKEN_BYTES])
            if child is None:
                return self._add_leaf(node, cut(key, node.end), blocks)
            common = common_length(child.edge, key, node.end)
            node = child if node.end + common == child.end else self._split(child, common)
        return node

    def merge(self, node: Node) -> Node:
        """Let the only child of ``node`` begin where ``node`` begins, which goes; the child."""
        (child,) = node.children.values()
        parent = node.parent
        assert parent is not None
        if self._has_kv:
            child.blocks, dropped = join_blocks(node, child, self._block_size)
            self._blocks.release(dropped)
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.first] = child
        node.parent, node.blocks = None, ()
        self.count -= 1
        return child

    def remove(self, leaf: Node) -> Node:
        """Take a leaf out with its blocks; its parent, which may serve nothing now."""
        parent = leaf.parent
        assert parent is not None and not leaf.children and not leaf.locks
        self.record(Change.KV_REMOVED, leaf)
        self._blocks.release(leaf.blocks)
        del parent.children[leaf.first]
        leaf.parent, leaf.blocks = None, ()
        self.count -= 1
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.namespace]
        return parent

    def blocks_of(self, node: Node, length: int) -> list[int]:
        """The KV blocks of the first ``length`` tokens on the path to ``node``."""
        return blocks_of_path(node, length, self._block_size) if self._has_kv else []

    def unite(self, node: Node, spared: Container[int]) -> None:
        """Let nodes above ``node`` have no copy of a block of their own, unless it is ``spared``, where that of the
        node below, which holds the same tokens and more, does for both."""
        path = node.path()
        for upper, lower in zip(path[-2::-1], path[:0:-1], strict=True):
            if self._has_kv and lower.start % self._block_size and upper.blocks[-1] not in spared:
                self._blocks.retain(lower.blocks[:1])
                self._blocks.release(upper.blocks[-1:])
                upper.blocks = upper.blocks[:-1] + lower.blocks[:1]

    def record(self, change: Change, node: Node) -> None:
        """Log what came to ``node`` or went from it."""
        if not self._events.capacity:
            return
        parts, above = [], node
        while above.parent is not None:
            parts.append(above.edge)
            above = above.parent
        assert isinstance(above, Root)
        self._events.record(Event(change, above.namespace, node.start, node.end, tuple(parts[::-1])))

    def _add_leaf(self, parent: Node, edge: bytes, blocks: Sequence[int]) -> Node:
        start, end = parent.end, parent.end + key_length(edge)
        first, last = block_span(start, end, self._block_size)
        own = tuple(map(int, blocks[first:last])) if self._has_kv else ()
        assert not self._has_kv or len(own) == last - first, "fewer blocks than tokens"
        self._blocks.retain(own)
        leaf = Node(parent, edge, own)
        parent.children[leaf.first] = leaf
        self.count += 1
        self.record(Change.KV_INSERTED, leaf)
        return leaf

    def _split(self, node: Node, length: int) -> Node:
        """Cut the first ``length`` tokens of ``node`` off into a new parent, a tombstone, and return that."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, cut(node.edge, 0, length))
        if self._has_kv:
            upper.blocks, lower, shared = split_blocks(node, upper.end, self._block_size)
            node.blocks = lower
            self._blocks.retain(shared)
        node.edge, node.parent = cut(node.edge, length), upper
        upper.children[node.first] = node
        upper.locks, upper.access = node.locks, node.access
        parent.children[upper.first] = upper
        self.count += 1
        return upper
