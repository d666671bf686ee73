"""A radix tree over tokens that owns KV blocks and recurrent states.

The master rule: a state in the tree has consumed exactly the tokens on the path to the end of its node, never more,
never less. A node has one state at most, and it holds for the node's end only; a node that a split makes has none.

::

    root ── "the quick" ──┬── " brown fox"   state after 19 tokens, say
            (tombstone)   └── " grey wolf"   state after 18

A node without a state is a tombstone: its KV serves the nodes below it, but no sequence resumes there, unless the
model has no recurrent layers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

from hybridge.runtime.prefix_cache.events import Change, EventLog
from hybridge.runtime.prefix_cache.eviction_policy import EvictionPolicy, LruEviction
from hybridge.runtime.prefix_cache.eviction_queue import EvictionQueue
from hybridge.runtime.prefix_cache.node import Node, Root
from hybridge.runtime.prefix_cache.resources import BlockReferences, StateSlots
from hybridge.runtime.prefix_cache.token_tree import TokenTree, TreeMatch


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
        policy: EvictionPolicy | None = None,
        events: EventLog | None = None,
    ) -> None:
        self.has_kv, self.has_state = has_kv, has_state
        self.events = events or EventLog()
        self._policy: EvictionPolicy = policy or LruEviction()
        self.states = 0
        self._tokens = TokenTree(blocks, block_size, has_kv, has_state, self.events)
        self._slots = slots
        self._clock = 0
        self._readers: set[Node] = set()  # whose states are locked
        # Called before a node loses its state (False) or all it has (True) to make room.
        self.before_eviction: Callable[[Node, bool], None] = lambda node, whole: None
        self._state_queue = EvictionQueue(self._policy.state_value, _may_lose_state)
        self._kv_queue = EvictionQueue(lambda node: node.access, _may_lose_kv)

    @property
    def nodes(self) -> int:
        """Number of nodes without the roots."""
        return self._tokens.count

    def walk(self) -> Iterator[Node]:
        """All nodes, roots included, in no particular order."""
        return self._tokens.walk()

    def namespaces(self) -> dict[str, Root]:
        """The root of each namespace."""
        return self._tokens.roots

    def latest_namespaces(self) -> Iterator[str]:
        """The namespaces, latest first; the tree must not change during the iteration."""
        return self._tokens.latest_namespaces()

    def match(self, key: bytes, namespace: str = "") -> TreeMatch:
        """The deepest place of ``key`` where a sequence can resume. Nothing is locked or refreshed."""
        return self._tokens.match(key, namespace)

    def blocks_of(self, node: Node, length: int | None = None) -> list[int]:
        """The KV blocks of the first ``length`` tokens (all by default) on the path to ``node``."""
        return self._tokens.blocks_of(node, node.end if length is None else length)

    def insert(
        self, key: bytes, blocks: Sequence[int], state: int | None = None, namespace: str = ""
    ) -> tuple[Node, bool]:
        """Put the tokens of ``key`` into the tree; the node that ends there, and whether the tree took the state.

        blocks: the KV blocks of all tokens, from the first on; the tree retains those that it did not have. state: a
        slot whose state has consumed exactly these tokens; it is the tree's when taken, else the caller's still.
        """
        node = self._tokens.grow(key, blocks, namespace)
        taken = state is not None and self.has_state and node.state is None and node.attached
        if taken:
            node.state = state
            self.states += 1
            self._tokens.record(Change.STATE_INSERTED, node)
        self.touch(node)
        return node, taken

    def unite(self, node: Node, spared: Container[int]) -> None:
        """Release blocks that the tokens up to ``node`` do not fill, except those in ``spared``."""
        self._tokens.unite(node, spared)

    def touch(self, node: Node) -> None:
        """Note that the state of ``node`` and the KV up to it were of use."""
        self._clock += 1
        node.state_access = self._clock
        for above in node.path():
            above.access = self._clock
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Let the queues know what has changed about ``node``, which they forget when it has left the tree."""
        if self.has_state:
            self._state_queue.push(node)
        self._kv_queue.push(node)

    def lock(self, node: Node) -> None:
        """Keep the KV up to ``node``, and its state, until ``unlock``."""
        node.state_locks += 1
        self._readers.add(node)
        self.lock_kv(node)

    def lock_kv(self, node: Node) -> None:
        """Keep the KV up to ``node`` until ``unlock_kv``."""
        for above in node.path():
            above.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one ``lock``."""
        self.unlock_state(node)
        self.unlock_kv(node)

    def unlock_state(self, node: Node) -> None:
        """Unlock the state of a locked node but not its KV: the reader has a copy. ``unlock_kv`` completes it."""
        assert node.state_locks > 0
        node.state_locks -= 1
        if not node.state_locks:
            self._readers.discard(node)
        self.offer(node)

    def unlock_kv(self, node: Node) -> None:
        """Undo one ``lock_kv``, or the other half of ``lock`` after ``unlock_state``."""
        path = node.path()
        for above in path:
            assert above.locks > 0
            above.locks -= 1
        for above in reversed(path):
            if not above.locks:
                self.offer(above)
                self._prune(above)

    @property
    def free_states(self) -> int:
        """States that could be evicted at present."""
        return self.states - sum(node.state is not None for node in self._readers)

    def least_state(self) -> float | None:
        """The least value of a state that could be evicted; None if there is none."""
        node = self._state_queue.peek()
        return None if node is None else self._policy.state_value(node)

    def least_leaf(self) -> Node | None:
        """The leaf that ``evict_kv`` would evict; None if there is none."""
        return self._kv_queue.peek()

    def new_state_value(self, start: int, end: int, uses: float) -> float:
        """The value of a state after ``end`` tokens, with the nearest one above at ``start``, for that many uses."""
        return self._policy.new_state_value(self._clock + 1, start, end, uses)

    def drop_state(self, node: Node) -> None:
        """Drop this very state, which must be there and not locked."""
        self._drop_state(node)
        self._prune(node)

    def take_state(self, node: Node) -> int:
        """Hand the slot of ``node`` over to the only reader that has locked it; the tree loses the state."""
        assert node.state is not None and node.state_locks == 1
        self._tokens.record(Change.STATE_REMOVED, node)
        slot, node.state = node.state, None
        self.states -= 1
        return slot

    def evict_state(self) -> bool:
        """Evict the state of the least value; False when every state is locked."""
        node = self._state_queue.pop()
        if node is None:
            return False
        self.before_eviction(node, False)
        self._drop_state(node)
        self._prune(node)
        return True

    def evict_kv(self) -> bool:
        """Evict the leaf that was not of use for the longest time, with its state; False when all are locked."""
        node = self._kv_queue.pop()
        if node is None:
            return False
        self.before_eviction(node, True)
        self._prune(self._remove(node))
        return True

    def clear(self) -> None:
        """Evict all that is not locked."""
        while self.evict_kv() or self.evict_state():
            pass

    def _prune(self, node: Node) -> None:
        """Remove or merge useless tombstones from ``node`` upwards: those without children, or with a single one."""
        while node.attached and node.state is None and not node.locks:
            if len(node.children) == 1:
                child = self._tokens.merge(node)
                self.offer(node)
                self.offer(child)
                return
            if node.children or not self.has_state:
                return
            node = self._remove(node)

    def _remove(self, leaf: Node) -> Node:
        """Remove an unlocked leaf and all that it holds; returns its parent, which may now be useless."""
        if leaf.state is not None:
            self._drop_state(leaf)
        parent = self._tokens.remove(leaf)
        self.offer(leaf)
        self.offer(parent)
        return parent

    def _drop_state(self, node: Node) -> None:
        assert node.state is not None and not node.state_locks
        self._tokens.record(Change.STATE_REMOVED, node)
        self._slots.release([node.state])
        node.state = None
        self.states -= 1


def _may_lose_state(node: Node) -> bool:
    return node.attached and node.state is not None and not node.state_locks


def _may_lose_kv(node: Node) -> bool:
    return node.attached and not node.children and not node.locks
