"""A radix tree over tokens that owns KV blocks and recurrent states.

The master rule: a state in the tree has consumed exactly the tokens on the path to the end of its node, never more,
never less. A node has one state at most, and it holds for the node's end only; a node that a split makes has none.

::

    root ── "the quick" ──┬── " brown fox"   state after 19 tokens, say
            (tombstone)   └── " grey wolf"   state after 18

A node without a state is a tombstone: its KV serves the nodes below it, but nobody can resume there, unless the model
has no recurrent layers at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runtime.prefix_cache.block_runs import block_span, blocks_of_path, join_blocks, split_blocks
from runtime.prefix_cache.events import Change, Event, EventLog
from runtime.prefix_cache.eviction_queue import EvictionQueue
from runtime.prefix_cache.node import Node, Root
from runtime.prefix_cache.resources import BlockReferences, StateSlots
from runtime.prefix_cache.token_key import TOKEN_BYTES, common_length, cut, key_length
from runtime.prefix_cache.worth import LruWorth, Worth


@dataclass(frozen=True)
class TreeMatch:
    """How much of a key the tree knows.

    node, length: where a sequence can resume; ``length`` is ``node.end``, or less for a model without recurrent
    layers, which can resume inside a node. known: tokens whose KV the tree has. branches: whether the key leaves the
    tree inside a node, where an insert would split it.
    """

    node: Node
    length: int
    known: int
    branches: bool


class RadixTree:
    """Sequences of tokens by namespace; see the module. Not for several threads at once.

    has_kv, has_state: whether the model has attention and recurrent layers. Without recurrent layers every position
    can be resumed, without attention no node has blocks.
    """

    def __init__(
        self,
        blocks: BlockReferences,
        slots: StateSlots,
        block_size: int,
        has_kv: bool = True,
        has_state: bool = True,
        worth: Worth | None = None,
        events: EventLog | None = None,
    ) -> None:
        self.block_size, self.has_kv, self.has_state = block_size, has_kv, has_state
        self.events = events or EventLog()
        self._blocks, self._slots = blocks, slots
        self._roots: dict[str, Root] = {}
        self._clock = 0
        self.nodes = self.states = 0
        self.worth: Worth = worth or LruWorth()
        self._readers: set[Node] = set()  # whose states are locked
        # Called before a node loses its state (False) or all it has (True) to make room.
        self.before_eviction: Callable[[Node, bool], None] = lambda node, whole: None
        self._state_queue = EvictionQueue(lambda node: self.worth.of_state(node), _may_lose_state)
        self._kv_queue = EvictionQueue(lambda node: self.worth.of_kv(node), _may_lose_kv)

    def match(self, key: bytes, namespace: str = "") -> TreeMatch:
        """The deepest place of ``key`` where a sequence can resume. Nothing is locked or refreshed."""
        root = self._roots.get(namespace)
        if root is None:
            return TreeMatch(Root(namespace), 0, 0, False)
        node: Node = root
        resume, known, branches = node, 0, False
        while True:
            child = node.children.get(key[known * TOKEN_BYTES : (known + 1) * TOKEN_BYTES])
            if child is None:
                break
            common = common_length(child.edge, key, known)
            known += common
            if known < child.end:
                branches = known < key_length(key)
                if not self.has_state:
                    return TreeMatch(child, known, known, branches)
                break
            node = child
            if node.state is not None or not self.has_state:
                resume = node
        return TreeMatch(resume, resume.end, known, branches)

    def insert(
        self, key: bytes, blocks: Sequence[int], state: int | None = None, namespace: str = ""
    ) -> tuple[Node, bool]:
        """Put the tokens of ``key`` into the tree; the node that ends there, and whether the tree took the state.

        blocks: the KV blocks of all tokens, from the first on; the tree retains those that it did not have. state: a
        slot whose state has consumed exactly these tokens; it is the tree's when taken, else the caller's still.
        """
        node = self._grow(key, blocks, namespace)
        took = state is not None and self.has_state and node.state is None and node.attached
        if took:
            node.state = state
            self.states += 1
            self._record(Change.STATE_INSERTED, node)
        self.touch(node)
        return node, took

    def touch(self, node: Node) -> None:
        """Note that the state of ``node`` and the KV up to it were of use."""
        self._clock += 1
        node.state_access = self._clock
        for above in node.path():
            above.access = self._clock
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Let the queues know what has changed about ``node``."""
        if node.attached:
            self._state_queue.push(node)
            self._kv_queue.push(node)

    def lock(self, node: Node) -> None:
        """Keep the KV up to ``node``, and its state, until ``unlock``."""
        node.state_locks += 1
        self._readers.add(node)
        for above in node.path():
            above.locks += 1

    def unlock(self, node: Node) -> None:
        """Take back one ``lock``."""
        assert node.state_locks > 0 and (node.locks > 0 or isinstance(node, Root))
        self._unlock_state(node)
        path = node.path()
        for above in path:
            above.locks -= 1
        for above in reversed(path):
            self.offer(above)
            self._tidy(above)

    def unlock_state(self, node: Node) -> None:
        """Let the state of a locked node go, its KV not: the reader has its own copy. ``unlock_kv`` completes it."""
        assert node.state_locks > 0
        self._unlock_state(node)
        self.offer(node)

    def unlock_kv(self, node: Node) -> None:
        """The other half of ``unlock`` after ``unlock_state``."""
        node.state_locks += 1
        self.unlock(node)

    def blocks_of(self, node: Node, length: int | None = None) -> list[int]:
        """The KV blocks of the first ``length`` tokens (all by default) on the path to ``node``."""
        return blocks_of_path(node, node.end if length is None else length, self.block_size) if self.has_kv else []

    @property
    def free_states(self) -> int:
        """States that could be given up at present."""
        return self.states - sum(node.state is not None for node in self._readers)

    def least_state(self) -> float | None:
        """The least worth of a state that could be given up; None when there is none."""
        node = self._state_queue.pop()
        if node is None:
            return None
        self._state_queue.push(node)
        return self.worth.of_state(node)

    def worth_of_new_state(self, start: int, end: int, uses: float) -> float:
        """What a state after ``end`` tokens, the nearest one above at ``start``, is worth now if used so often."""
        return self.worth.of_new_state(self._clock + 1, start, end, uses)

    def oldest_leaf(self) -> Node | None:
        """What ``evict_kv`` would give up next; None when there is nothing."""
        node = self._kv_queue.pop()
        if node is not None:
            self._kv_queue.push(node)
        return node

    def drop_state(self, node: Node) -> None:
        """Give up this very state, which must be there and not locked."""
        self._drop_state(node)
        self._tidy(node)

    def take_state(self, node: Node) -> int:
        """Hand the slot of ``node`` over to the only one who has locked it; the tree has the state no more."""
        assert node.state is not None and node.state_locks == 1
        self._record(Change.STATE_REMOVED, node)
        slot, node.state = node.state, None
        self.states -= 1
        return slot

    def evict_state(self) -> bool:
        """Give up the state of the least worth; False when every state is locked."""
        node = self._state_queue.pop()
        if node is None:
            return False
        self.before_eviction(node, False)
        self._drop_state(node)
        self._tidy(node)
        return True

    def evict_kv(self) -> bool:
        """Give up the leaf of the least worth, with its state; False when all are locked."""
        node = self._kv_queue.pop()
        if node is None:
            return False
        self.before_eviction(node, True)
        self._tidy(self._remove(node))
        return True

    def clear(self) -> None:
        """Give up all that is not locked."""
        while self.evict_kv():
            pass

    def reorder(self) -> None:
        """Order what may go anew: the policy has changed."""
        nodes = [node for node in self.walk() if node.attached]
        self._state_queue.reorder(nodes)
        self._kv_queue.reorder(nodes)

    def walk(self) -> Iterator[Node]:
        """All nodes, roots included, in no particular order."""
        for root in self._roots.values():
            yield from root.walk()

    def namespaces(self) -> dict[str, Root]:
        """The root of each namespace."""
        return dict(self._roots)

    def _grow(self, key: bytes, blocks: Sequence[int], namespace: str) -> Node:
        """The node that ends at ``key``, made where it was missing."""
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

    def _add_leaf(self, parent: Node, edge: bytes, blocks: Sequence[int]) -> Node:
        start, end = parent.end, parent.end + key_length(edge)
        first, last = block_span(start, end, self.block_size)
        held = tuple(int(block) for block in blocks[first:last]) if self.has_kv else ()
        assert not self.has_kv or len(held) == last - first, "fewer blocks than tokens"
        self._blocks.retain(held)
        leaf = Node(parent, edge, held)
        parent.children[leaf.first] = leaf
        self.nodes += 1
        self._record(Change.KV_INSERTED, leaf)
        return leaf

    def _split(self, node: Node, length: int) -> Node:
        """Cut the first ``length`` tokens of ``node`` off into a new parent, a tombstone, and return that."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, cut(node.edge, 0, length))
        if self.has_kv:
            upper.blocks, lower, shared = split_blocks(node, upper.end, self.block_size)
            node.blocks = lower
            self._blocks.retain(shared)
        node.edge, node.parent = cut(node.edge, length), upper
        upper.children[node.first] = node
        upper.locks, upper.access = node.locks, node.access
        parent.children[upper.first] = upper
        self.nodes += 1
        return upper

    def _tidy(self, node: Node) -> None:
        """Remove or merge what serves nobody, from ``node`` upwards: tombstones that end a path or only prolong one."""
        while node.attached and node.state is None and not node.locks:
            if len(node.children) == 1:
                self._merge(node)
            if node.children or not self.has_state:
                return
            node = self._remove(node)

    def _merge(self, node: Node) -> None:
        """Let the only child of ``node``, an unlocked tombstone, begin where ``node`` begins."""
        (child,) = node.children.values()
        parent = node.parent
        assert parent is not None
        if self.has_kv:
            child.blocks, dropped = join_blocks(node, child, self.block_size)
            self._blocks.release(dropped)
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.first] = child
        node.parent, node.blocks = None, ()
        self.nodes -= 1
        self.offer(child)

    def _remove(self, leaf: Node) -> Node:
        """Take an unlocked leaf out of the tree with all that it holds; its parent, which may be left for nobody."""
        parent = leaf.parent
        assert parent is not None and not leaf.children and not leaf.locks
        if leaf.state is not None:
            self._drop_state(leaf)
        self._record(Change.KV_REMOVED, leaf)
        self._blocks.release(leaf.blocks)
        del parent.children[leaf.first]
        leaf.parent, leaf.blocks = None, ()
        self.nodes -= 1
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.namespace]
        self.offer(parent)
        return parent

    def _drop_state(self, node: Node) -> None:
        assert node.state is not None and not node.state_locks
        self._record(Change.STATE_REMOVED, node)
        self._slots.release([node.state])
        node.state = None
        self.states -= 1

    def _unlock_state(self, node: Node) -> None:
        node.state_locks -= 1
        if not node.state_locks:
            self._readers.discard(node)

    def _record(self, change: Change, node: Node) -> None:
        self.events.record(Event(change, node.root.namespace, node.start, node.end))


def _may_lose_state(node: Node) -> bool:
    return node.attached and node.state is not None and not node.state_locks


def _may_lose_kv(node: Node) -> bool:
    return node.attached and not node.children and not node.locks
