"""Counts of tokens that prompts looked up in the prefix cache, that it had, and that it evicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice

from hybridge.runtime.blocks.sequence_memory import SequenceMemory
from hybridge.runtime.prefix_cache.evicted_prefixes import EvictedPrefixes
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree

# Why tokens had to be computed.
TOO_SHORT, NO_KV, NO_STATE, EVICTED, NAMESPACE = "too_short", "no_kv", "no_state", "evicted", "namespace"
# Other namespaces that are looked through for it, the latest ones: there may be one for each user.
_NAMESPACES = 64


@dataclass
class CacheMetrics:
    """Counts since the beginning. A request is looked up once each time that it begins.

    hits: all but the last token came from the cache; partial_hits: some did; misses: none, by reason: "too_short" (a
    prompt of one token), "evicted" (it was known), "namespace" (in another one of the latest it could begin with more
    tokens than this one knows), "no_state" (its KV is known, but no state), "no_kv" (never seen).
    queried_tokens: of prompts; hit_tokens: of these, from the cache; recomputed_tokens: of these, computed though their
    KV was there.
    evicted_states and evicted_leaves: to make room; states_refused: of less
    value than what was there. spilled_*, restored_*: to and from host memory.
    """

    hits: int = 0
    partial_hits: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    queried_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    inserted_states: int = 0
    evicted_states: int = 0
    evicted_leaves: int = 0
    states_refused: int = 0
    spilled_states: int = 0
    spilled_blocks: int = 0
    restored_states: int = 0
    restored_blocks: int = 0

    @property
    def token_hit_rate(self) -> float:
        """Share of the prompts' tokens that came from the cache."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    def looked_up(self, tree: RadixTree, evicted: EvictedPrefixes, memory: SequenceMemory, prefix: RadixPrefix) -> None:
        """Count a request that begins."""
        self.queried_tokens += prefix.prompt
        self.hit_tokens += memory.length
        self.recomputed_tokens += max(0, prefix.known - memory.length)
        if memory.length and memory.length == prefix.cacheable:
            self.hits += 1
        elif memory.length:
            self.partial_hits += 1
        else:
            self.misses[_reason(tree, evicted, memory, prefix)] += 1

    def to_json(self) -> dict[str, object]:
        """All counts and the hit rate."""
        return {**asdict(self), "misses": dict(self.misses), "token_hit_rate": self.token_hit_rate}


@dataclass(frozen=True)
class CacheReport:
    """The current contents of the cache, in bytes and numbers, and the counts so far."""

    nodes: int
    states: int
    kv_bytes: int
    state_bytes: int
    host_bytes: int
    pinned: tuple[str, ...]
    counts: CacheMetrics

    def to_json(self) -> dict[str, object]:
        """For reports and monitoring."""
        counts = self.counts.to_json()
        return {**{name: value for name, value in vars(self).items() if name != "counts"}, "counts": counts}


def _reason(tree: RadixTree, evicted: EvictedPrefixes, memory: SequenceMemory, prefix: RadixPrefix) -> str:
    if not prefix.cacheable:
        return TOO_SHORT
    key = prefix.key(memory.tokens, prefix.cacheable)
    if evicted.knows(memory.namespace, key):
        return EVICTED
    others = (name for name in tree.latest_namespaces() if name != memory.namespace)
    if any(tree.match(key, name).length > prefix.known for name in islice(others, _NAMESPACES)):
        return NAMESPACE
    return NO_STATE if prefix.known else NO_KV
