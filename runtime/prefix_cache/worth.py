"""What losing a part of the cache costs: the policies of eviction.

Both give a number that stays as it is until the node is used again, so that a heap can hold it: recency is a tick of
the clock, not an age.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hybridge.runtime.prefix_cache.kinds import Chances
from hybridge.runtime.prefix_cache.node import Node

# More uses make a state no more worth: what was popular once has to be able to go.
_MOST_USES = 8.0


@dataclass(frozen=True)
class CacheCosts:
    """What the parts of the cache take and save, per token and per state.

    kv_bytes_per_token and state_bytes: memory. work_per_token: the cost of computing one token again, and
    work_per_token_squared: what attention adds for each earlier token, in the same unit (FLOPs, say).
    """

    kv_bytes_per_token: int
    state_bytes: int
    work_per_token: float = 1.0
    work_per_token_squared: float = 0.0

    def work(self, start: int, end: int) -> float:
        """Cost of computing tokens start..end."""
        return self.work_per_token * (end - start) + self.work_per_token_squared * (end**2 - start**2) / 2


def state_above(node: Node) -> Node | None:
    """The nearest node above with a state; None where there is none."""
    above = node.parent
    while above is not None and above.state is None:
        above = above.parent
    return above


def last_state(node: Node) -> int:
    """Tokens up to the nearest state above ``node``; 0 where there is none."""
    above = state_above(node)
    return 0 if above is None else above.end


@dataclass
class LruWorth:
    """The least recently used goes first."""

    def of_state(self, node: Node) -> float:
        return float(node.state_access)

    def of_kv(self, node: Node) -> float:
        return float(node.access)

    def of_new_state(self, clock: int, start: int, end: int, uses: float) -> float:
        """Worth of a state that is used at ``clock`` and perhaps ``uses`` times, of ``end`` tokens, after ``start``."""
        return float(clock)


@dataclass
class ValueWorth:
    """Recency plus ``alpha`` times the work that a hit saves for each byte held (Marconi, arXiv 2411.19379).

    ``alpha`` is in ticks for work per byte that is ``scale``, the work per byte of one state after 1,024 tokens, and a
    state that was used once. What was used more often counts so often; what never was, as its kind usually is.
    """

    costs: CacheCosts
    alpha: float = 1.0
    chances: Chances = field(default_factory=Chances)
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.scale = self.costs.work(0, 1024) / max(self.costs.state_bytes + 1024 * self.costs.kv_bytes_per_token, 1)

    def of_state(self, node: Node) -> float:
        saved = self.costs.work(last_state(node), node.end)
        return node.state_access + self._bonus(saved, self.costs.state_bytes, node.uses or self.chances.of(node.kind))

    def of_kv(self, node: Node) -> float:
        nbytes = (node.end - node.start) * self.costs.kv_bytes_per_token
        nbytes += 0 if node.state is None else self.costs.state_bytes
        return node.access + self._bonus(
            self.costs.work(last_state(node), node.end), nbytes, node.uses or self.chances.of(node.kind)
        )

    def of_new_state(self, clock: int, start: int, end: int, uses: float) -> float:
        """Worth of a state that is used at ``clock`` and perhaps ``uses`` times, of ``end`` tokens, after ``start``."""
        return clock + self._bonus(self.costs.work(start, end), self.costs.state_bytes, uses)

    def _bonus(self, saved: float, nbytes: int, uses: float) -> float:
        return self.alpha * min(uses, _MOST_USES) * saved / max(nbytes, 1) / self.scale


Worth = LruWorth | ValueWorth
WorthFunction = Callable[[Node], float]
