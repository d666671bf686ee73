"""The tokens of the latest prompts: where a new one branches off from them, also when their KV was evicted."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.prefix_cache.events import EventLog
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import key_length


class NoMemory:
    """Blocks and slots of a tree that has none."""

    def retain(self, blocks: Sequence[int]) -> None:
        """There is nothing to count."""

    def release(self, blocks: Sequence[int]) -> None:
        """There is nothing to count."""


class PastPrompts:
    """At most ``prompts`` of them, with at most ``tokens`` tokens in all, shared ones counted once."""

    def __init__(self, prompts: int = 1024, tokens: int = 1 << 21) -> None:
        self._prompts, self._most = prompts, tokens
        self._tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, has_state=False, events=EventLog(0))
        self._tokens = 0

    def add(self, namespace: str, key: bytes) -> None:
        """A prompt comes."""
        before = self._tree.match(key, namespace).known
        self._tree.insert(key, (), None, namespace)
        self._tokens += key_length(key) - before
        while self._tree.nodes > 2 * self._prompts or self._tokens > self._most:
            leaf = self._tree.least_leaf()
            if leaf is None:
                return
            self._tokens -= leaf.end - leaf.start
            self._tree.evict_kv()

    def branch_point(self, namespace: str, key: bytes) -> int:
        """Tokens after which ``key`` differs from all of them; 0 where it continues where one ended."""
        match = self._tree.match(key, namespace)
        return match.known if match.branches or match.node.children else 0
