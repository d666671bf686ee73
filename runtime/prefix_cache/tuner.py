"""Alpha by trial: what would have hit most of the latest requests.

Each candidate has a shadow of the tree, of keys alone and as many states as the cache, that sees the same requests. So
replaying a window takes no time of its own: it has been replayed when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.prefix_cache.events import EventLog
from hybridge.runtime.prefix_cache.kinds import Chances, Kind
from hybridge.runtime.prefix_cache.path_cap import thin_path
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.stops import wanted_stops
from hybridge.runtime.prefix_cache.token_key import cut, key_length
from hybridge.runtime.prefix_cache.uses import StateUses
from hybridge.runtime.prefix_cache.worth import CacheCosts, ValueWorth

# In ticks of the tree's clock for a state that saves 1,024 tokens and was used once; 0 is the order of use alone.
ALPHAS = (0.0, 16.0, 128.0, 1024.0, 8192.0)
# Share of the tokens that another alpha must have hit more, so that the order is not changed for nothing.
_CLEARLY = 0.01


class _Slots:
    """As many states as the cache has, without any."""

    def __init__(self, count: int) -> None:
        self.free = count

    def retain(self, blocks: Sequence[int]) -> None:
        assert not blocks

    def release(self, slots: Sequence[int]) -> None:
        self.free += len(slots)


class Shadow:
    """What the cache would hold with one alpha."""

    def __init__(
        self, costs: CacheCosts, alpha: float, slots: int, settings: PrefixCacheSettings, chances: Chances
    ) -> None:
        self.alpha = alpha
        self._slots, self._settings = _Slots(slots), settings
        self._needs = CacheNeeds(kv=False, state=True)
        worth = ValueWorth(costs, alpha, chances)
        self._tree = RadixTree(self._slots, self._slots, 1, has_kv=False, worth=worth, events=EventLog(0))
        self._uses = StateUses(self._tree, learns=False)
        self._tree.before_eviction = lambda node, whole: self._uses.gone(node)

    def begin(self, asked: bytes, namespace: str, expected: Sequence[int], parted: int) -> int:
        """A prompt comes, ``asked`` and one token more; the tokens of it that would be there."""
        match = self._tree.match(asked, namespace)
        self._uses.asked(namespace, asked, match.length)
        if match.length:
            self._uses.resumed(match.node)
        prompt = key_length(asked) + 1
        for stop, kind in reversed(wanted_stops(self._settings, self._needs, match, prompt, expected, parted)):
            self._insert(cut(asked, 0, stop), namespace, match.length, kind)
        return match.length

    def end(self, key: bytes, namespace: str) -> None:
        """A sequence leaves its state."""
        self._insert(key, namespace, 0, Kind.END)

    def _insert(self, key: bytes, namespace: str, start: int, kind: Kind) -> None:
        tree = self._tree
        if not self._slots.free:
            least = tree.least_state()
            uses = self._uses.expected(namespace, key, kind)
            if least is None or least > tree.worth_of_new_state(start, key_length(key), uses):
                self._uses.refused(namespace, key, kind)
                return
            tree.evict_state()
        node, took = tree.insert(key, (), 0, namespace)
        if took:
            self._slots.free -= 1
            self._uses.inserted(node, kind)
            if self._settings.path_states is not None:
                thin_path(tree, node, self._settings.path_states)


@dataclass
class AlphaTuner:
    """``alpha`` is the best so far. ``slots``: states that the cache can hold. chances: of kinds, learned elsewhere."""

    costs: CacheCosts
    slots: int
    settings: PrefixCacheSettings
    chances: Chances = field(default_factory=Chances)
    alpha: float = ALPHAS[3]
    _shadows: list[Shadow] = field(init=False)
    _hits: deque[list[int]] = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._shadows = [Shadow(self.costs, alpha, self.slots, self.settings, self.chances) for alpha in ALPHAS]
        self._hits = deque(maxlen=self.settings.window)

    def begin(self, asked: bytes, namespace: str, expected: Sequence[int] = (), parted: int = 0) -> bool:
        """A prompt comes, ``asked`` and one token more; whether another alpha has turned out to be better.

        expected, parted: as for ``wanted_stops``.
        """
        self._hits.append([shadow.begin(asked, namespace, expected, parted) for shadow in self._shadows])
        self._count += 1
        if self._count % max(1, self.settings.window // 4):
            return False
        totals = {
            shadow.alpha: sum(hits) for shadow, hits in zip(self._shadows, zip(*self._hits, strict=True), strict=True)
        }
        best = max(totals, key=lambda alpha: totals[alpha])
        if totals[best] <= totals[self.alpha] * (1 + _CLEARLY):
            return False
        self.alpha = best
        return True

    def end(self, key: bytes, namespace: str) -> None:
        """A sequence leaves its state."""
        for shadow in self._shadows:
            shadow.end(key, namespace)
