"""Eviction policies: the cost of losing a state.

Both give a number that stays unchanged until the node is used again, so that a heap can hold it: recency is a tick of
the tree's clock, not an age. KV is evicted in the order of its last use under both.
"""

from __future__ import annotations

from typing import Protocol

from hybridge.runtime.prefix_cache.checkpoint_kind import REUSE_RATES
from hybridge.runtime.prefix_cache.node import Node

# Further uses do not make a state more valuable, so formerly popular states can be evicted.
_MOST_USES = 8.0


def state_above(node: Node) -> Node | None:
    """The nearest node above with a state; None if there is none."""
    above = node.parent
    while above is not None and above.state is None:
        above = above.parent
    return above


def last_state(node: Node) -> int:
    """Tokens up to the nearest state above ``node``; 0 if there is none."""
    above = state_above(node)
    return 0 if above is None else above.end


class EvictionPolicy(Protocol):
    """The state of the least value is evicted first."""

    def state_value(self, node: Node) -> float:
        """The value of the state of ``node``."""

    def new_state_value(self, clock: int, start: int, end: int, uses: float) -> float:
        """The value of a state after ``end`` tokens, if used ``uses`` times, with the nearest one at ``start``."""


class LruEviction:
    """The least recently used goes first."""

    def state_value(self, node: Node) -> float:
        return float(node.state_access)

    def new_state_value(self, clock: int, start: int, end: int, uses: float) -> float:
        return float(clock)


class CostAwareEviction:
    """Recency plus the tokens that a hit saves, times the number of hits (after Marconi, arXiv 2411.19379).

    A token saved once counts as much as one use of the tree later. A state that was never used counts as states of its
    kind usually are.
    """

    def state_value(self, node: Node) -> float:
        uses = node.uses or REUSE_RATES[node.kind]
        return self.new_state_value(node.state_access, last_state(node), node.end, uses)

    def new_state_value(self, clock: int, start: int, end: int, uses: float) -> float:
        return clock + min(uses, _MOST_USES) * (end - start)
