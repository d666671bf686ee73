"""Which part of the tree each sequence has locked."""

from __future__ import annotations

from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree


class Readers:
    """At most one node for each sequence, which ``RadixPrefix`` names.

    Its state is locked until the sequence has a copy. Its KV stays locked only to show what is in use, since sequences
    have their own references: where memory is short, ``release_kv_locks`` removes these locks.
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._known: set[SequenceMemory] = set()

    def begin(self, prefix: RadixPrefix, node: Node) -> None:
        """The sequence of ``prefix`` begins with the state of ``node``, unless it has to wait after all."""
        self._tree.lock(node)
        prefix.node, prefix.state_locked = node, True

    def admit(self, memory: SequenceMemory) -> None:
        """``memory`` runs."""
        self._known.add(memory)

    def copied(self, memory: SequenceMemory) -> None:
        """``memory`` has the state in its own slot."""
        prefix = RadixPrefix.of(memory)
        assert prefix.node is not None and prefix.state_locked
        self._tree.unlock_state(prefix.node)
        prefix.state_locked = False

    def move(self, memory: SequenceMemory, node: Node) -> None:
        """``memory`` has reached ``node``, whose state it does not need."""
        prefix = RadixPrefix.of(memory)
        self._tree.lock_kv(node)
        self.leave(memory)
        prefix.node, prefix.state_locked = node, False
        self._known.add(memory)

    def leave(self, memory: SequenceMemory) -> None:
        """Remove what ``memory`` has locked."""
        prefix = memory.prefix
        if not isinstance(prefix, RadixPrefix) or prefix.node is None:
            return
        node, prefix.node = prefix.node, None
        self._known.discard(memory)
        if prefix.state_locked:
            prefix.state_locked = False
            self._tree.unlock(node)
        else:
            self._tree.unlock_kv(node)

    def release_kv_locks(self) -> bool:
        """Unlock all KV but that with which a sequence begins in this step; False if there is none."""
        readers = [memory for memory in self._known if memory.source == NONE]
        for memory in readers:
            self.leave(memory)
        return bool(readers)
