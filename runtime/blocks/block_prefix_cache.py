"""Blocks found by their content: a sequence that begins like an earlier one shares its full blocks.

Content is a chain: the tokens of a block, and the content before it. A hash of both finds candidates, and then the
tokens and the content before are compared themselves, so that two contents of one hash are never taken for another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.cached_block_pool import CachedBlockPool
from hybridge.runtime.blocks.cached_prefix import CachedPrefix
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.prefix_cache import NoPrefixCache, PrefixCache, PrefixMatch
from hybridge.runtime.blocks.sequence_memory import SequenceMemory
from hybridge.runtime.blocks.slot_pool import SlotPool
from hybridge.runtime.engines.pool_sizes import PoolSizes

Hasher = Callable[[int, bytes], int]


class Content:
    """The content of one cached block. Two contents are the same only if they are the same object."""

    __slots__ = ("block", "hash", "namespace", "previous", "tokens")

    def __init__(self, namespace: str, previous: Content | None, tokens: bytes, hash_: int, block: int) -> None:
        self.namespace, self.previous, self.tokens, self.hash, self.block = namespace, previous, tokens, hash_, block


class ContentPrefix(CachedPrefix):
    """The first ``count`` blocks of a sequence have been inserted; ``last`` is the content of the last of them."""

    __slots__ = ("count", "last")

    def __init__(self, count: int = 0, last: Content | None = None) -> None:
        self.count, self.last = count, last

    def forked(self) -> ContentPrefix:
        return ContentPrefix(self.count, self.last)


class BlockPrefixCache(PrefixCache):
    """For models whose only state is KV over all positions: without recurrent layers and without sliding window.

    Of the blocks that no sequence uses, the one unused for the longest time is evicted first. Sequences of different
    namespaces never share.
    """

    pool: CachedBlockPool

    def __init__(self, sizes: PoolSizes, hasher: Hasher = lambda before, own: hash((before, own))) -> None:
        super().__init__(CachedBlockPool(sizes.num_blocks), SlotPool(sizes.num_slots))
        self._block_size, self._hasher = sizes.block_size, hasher
        self._by_hash: dict[int, list[Content]] = {}
        self._of_block: dict[int, Content] = {}

    def match(self, memory: SequenceMemory, reuse: bool = True) -> PrefixMatch:
        prefix, blocks = ContentPrefix(), []
        for index in range((len(memory.tokens) - 1) // self._block_size if reuse else 0):
            content = self._find(memory, prefix.last, self._tokens(memory, index))
            if content is None:
                break
            blocks.append(content.block)
            prefix.last = content
        prefix.count = len(blocks)
        return PrefixMatch(len(blocks) * self._block_size, blocks, prefix=prefix)

    def release(self, memory: SequenceMemory) -> None:
        """Nothing is locked: the sequence's own references keep its blocks."""

    def insert(self, memory: SequenceMemory, ended: bool = False) -> bool:
        prefix = memory.prefix
        if not isinstance(prefix, ContentPrefix):
            return False
        for index in range(prefix.count, memory.length // self._block_size):
            tokens = self._tokens(memory, index)
            content = self._find(memory, prefix.last, tokens)
            if content is None:
                block = memory.blocks[index]
                hash_ = self._hash(memory, prefix.last, tokens)
                content = Content(memory.namespace, prefix.last, tokens, hash_, block)
                self._by_hash.setdefault(hash_, []).append(content)
                self._of_block[block] = content
                self.pool.retain_cached((block,))
            prefix.count, prefix.last = index + 1, content
        return False

    def evict(self, blocks: int) -> bool:
        if self.pool.available < blocks:
            return False
        while self.pool.free < blocks:
            block = self.pool.longest_evictable()
            self._forget(self._of_block.pop(block))
            self.pool.release_cached((block,))
        return True

    def clear(self) -> None:
        self.pool.release_cached(list(self._of_block))
        self._by_hash.clear()
        self._of_block.clear()

    def start_over(self) -> None:
        super().start_over()
        self._by_hash.clear()
        self._of_block.clear()

    def blocks(self) -> Iterable[int]:
        return iter(self._of_block)

    def _find(self, memory: SequenceMemory, previous: Content | None, tokens: bytes) -> Content | None:
        """The cached content that follows ``previous`` with ``tokens``."""
        for content in self._by_hash.get(self._hash(memory, previous, tokens), ()):
            if content.previous is previous and content.tokens == tokens and content.namespace == memory.namespace:
                return content
        return None

    def _hash(self, memory: SequenceMemory, previous: Content | None, tokens: bytes) -> int:
        return self._hasher(hash(memory.namespace) if previous is None else previous.hash, tokens)

    def _tokens(self, memory: SequenceMemory, index: int) -> bytes:
        start = index * self._block_size
        return array("q", memory.tokens[start : start + self._block_size]).tobytes()

    def _forget(self, content: Content) -> None:
        same_hash = self._by_hash[content.hash]
        same_hash.remove(content)
        if not same_hash:
            del self._by_hash[content.hash]


def block_cache(sizes: PoolSizes, needs: CacheNeeds, shares: bool = True) -> PrefixCache:
    """A cache over pools of ``sizes`` that shares full blocks, where a model's needs allow it and with ``shares``."""
    if shares and needs.kv and not needs.state and needs.window is None:
        return BlockPrefixCache(sizes)
    return NoPrefixCache(BlockPool(sizes.num_blocks), SlotPool(sizes.num_slots))
