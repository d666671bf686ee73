"""Use counts of states, and estimates for new ones."""

from __future__ import annotations

from hybridge.runtime.prefix_cache.checkpoint_kind import REUSE_RATES, CheckpointKind
from hybridge.runtime.prefix_cache.eviction_history import EvictionHistory
from hybridge.runtime.prefix_cache.eviction_policy import state_above
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree

# Where sequences branch, and where nothing is known of what follows.
_SHARED = frozenset((CheckpointKind.BRANCH, CheckpointKind.EXPECTED))
_ANYWHERE = frozenset((CheckpointKind.SPREAD, CheckpointKind.DECODE))


class StateUses:
    """Counts the uses of the states of one tree."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree, self._history = tree, EvictionHistory()

    def resumed(self, node: Node) -> None:
        """A sequence begins with the state of ``node``."""
        node.resumed, node.inherits = node.resumed + 1, False
        node.uses += 1
        self._tree.touch(node)

    def inserted(self, node: Node, kind: CheckpointKind) -> None:
        """A new state, which takes over the uses of the one above it if it replaces that, which may then be evicted."""
        node.kind, node.resumed, node.inherits = kind, 0, False
        node.uses = max(node.uses, self._history.uses(node.root.namespace, node.key), int(bool(node.children)))
        above = state_above(node)
        if above is not None and _replaces(kind, above):
            node.uses, above.uses = max(node.uses, above.uses), 0
            node.inherits, above.inherits = above.resumed == 1 or above.inherits, False
            above.kind, above.resumed, above.state_access = CheckpointKind.PASSED, 0, 0
            self._tree.offer(above)
        self._tree.offer(node)

    def refused(self, namespace: str, key: bytes) -> None:
        """There was no room for a state after ``key``."""
        self._history.add(namespace, key)

    def evicted(self, node: Node, namespace: str, key: bytes) -> None:
        """The state of ``node``, which is that after ``key``, is about to be evicted."""
        self._history.add(namespace, key, max(node.uses, node.resumed))

    def looked_up(self, namespace: str, key: bytes, found: int) -> None:
        """A prompt comes, the first ``found`` tokens of which are cached."""
        self._history.ask(namespace, key, found)

    def expected(self, namespace: str, key: bytes, kind: CheckpointKind) -> float:
        """Expected number of uses of a new state after ``key``."""
        return self._history.uses(namespace, key) or REUSE_RATES[kind]


def _replaces(kind: CheckpointKind, above: Node) -> bool:
    """Whether a new state of ``kind`` serves all sequences that ``above`` served.

    That is so if the one sequence that continued from there left it, as in a chat, perhaps with others on its way; or
    if sequences branch at the new one, and ``above`` is nowhere in particular.
    """
    if len(above.children) != 1 or above.kind in _SHARED:
        return False
    return above.resumed == 1 or above.inherits or (kind in _SHARED and above.kind in _ANYWHERE)
