"""What states turn out to be good for, and what that says of others of their kind."""

from __future__ import annotations

from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.regrets import Regrets
from hybridge.runtime.prefix_cache.worth import ValueWorth, state_above

# Where sequences part, and where nothing is known of what follows.
_SHARED = frozenset((Kind.BRANCH, Kind.EXPECTED))
_ANYWHERE = frozenset((Kind.SPREAD, Kind.GRID, Kind.CHUNK, Kind.DECODE))


class StateUses:
    """Keeps the books of one tree. ``learns``: whether the chances of kinds change by what happens here."""

    def __init__(self, tree: RadixTree, learns: bool = True) -> None:
        self._tree, self._regrets = tree, Regrets()
        self._chances = tree.worth.chances if isinstance(tree.worth, ValueWorth) else None
        self._learns = learns and self._chances is not None

    def resumed(self, node: Node) -> None:
        """A sequence begins with the state of ``node``."""
        if not node.uses and not node.resumed:
            self._taken(node.kind)
            self._used(node.kind)
        node.resumed, node.inherits = node.resumed + 1, False
        node.uses += 1
        self._tree.touch(node)

    def inserted(self, node: Node, kind: Kind) -> None:
        """A new state, which takes the place of the one above it if all that came there came here."""
        node.kind, node.resumed, node.inherits = kind, 0, False
        node.uses = max(node.uses, self._regrets.uses(node.root.namespace, node.key), int(bool(node.children)))
        above = state_above(node)
        if above is not None and _replaces(kind, above):
            node.uses, above.uses = max(node.uses, above.uses), 0
            node.inherits, above.inherits = above.resumed == 1 or above.inherits, False
            above.kind, above.resumed = Kind.PASSED, 0
            self._tree.offer(above)
        self._tree.offer(node)

    def refused(self, namespace: str, key: bytes, kind: Kind) -> None:
        """There was no room for a state after ``key``."""
        self._regrets.add(namespace, key, kind)
        self._taken(kind)

    def gone(self, node: Node) -> None:
        """The state of ``node`` has to give way."""
        if not node.uses and not node.resumed:
            self._taken(node.kind)
        self._regrets.add(node.root.namespace, node.key, node.kind, max(node.uses, node.resumed))

    def asked(self, namespace: str, key: bytes, found: int) -> None:
        """A prompt comes, the first ``found`` tokens of which are there."""
        kind = self._regrets.ask(namespace, key, found)
        if kind is not None:
            self._used(kind)

    def expected(self, namespace: str, key: bytes, kind: Kind) -> float:
        """How often a new state after ``key`` can be expected to be of use."""
        times = self._regrets.uses(namespace, key)
        return times or (0.0 if self._chances is None else self._chances.of(kind))

    def _used(self, kind: Kind) -> None:
        if self._learns and self._chances is not None:
            self._chances.used(kind)

    def _taken(self, kind: Kind) -> None:
        if self._learns and self._chances is not None:
            self._chances.taken(kind)
            if self._chances.changed():
                self._tree.reorder()


def _replaces(kind: Kind, above: Node) -> bool:
    """Whether a new state of ``kind`` serves whoever ``above`` served.

    That is so if the one sequence that went on from there left it, as in a chat, perhaps with others on its way; or if
    sequences part at the new one, and ``above`` is nowhere in particular.
    """
    if len(above.children) != 1 or above.kind in _SHARED:
        return False
    return above.resumed == 1 or above.inherits or (kind in _SHARED and above.kind in _ANYWHERE)
