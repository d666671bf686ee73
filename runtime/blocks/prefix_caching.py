"""Blocks found by their content: a sequence that begins like an earlier one shares its full blocks.

Content is a chain: the tokens of a block, and the content before it. A hash of both finds candidates, and then the
tokens and the content before are compared themselves, so that two contents of one hash are never taken for another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from hybridge.runtime.blocks.allocator import BlockAllocator
from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.sequence_memory import SequenceMemory

Hasher = Callable[[int, bytes], int]


class Content:
    """The content of one published block. Two contents are the same only if they are the same object."""

    __slots__ = ("block", "hash", "namespace", "previous", "tokens")

    def __init__(self, namespace: str, previous: Content | None, tokens: bytes, hash_: int, block: int) -> None:
        self.namespace, self.previous, self.tokens, self.hash, self.block = namespace, previous, tokens, hash_, block


class PrefixCachingAllocator(BlockAllocator):
    """For models whose only state is KV over all positions: without recurrent layers and without sliding window.

    A block keeps its content when it becomes free, until it is taken for something else, the longest free first.
    Sequences of different namespaces never share.
    """

    def __init__(self, pool: BlockPool, block_size: int, hasher: Hasher = lambda before, own: hash((before, own))):
        super().__init__(pool, block_size)
        self._hasher = hasher
        self._by_hash: dict[int, list[Content]] = {}
        self._of_block: dict[int, Content] = {}

    def allocate(self, count: int) -> list[int]:
        blocks = self.pool.allocate(count)
        for block in blocks:
            content = self._of_block.pop(block, None)
            if content is not None:
                self._forget(content)
        return blocks

    def forget_all(self) -> None:
        self._by_hash.clear()
        self._of_block.clear()

    def release(self, blocks: Sequence[int]) -> None:
        freed = self.pool.release(blocks)
        self.pool.prefer(block for block in freed if block not in self._of_block)

    def adopt(self, memory: SequenceMemory) -> None:
        if memory.computes_all:
            return
        for index in range((len(memory.tokens) - 1) // self.block_size):
            content = self._find(memory, self._tokens(memory, index))
            if content is None:
                break
            self.pool.revive(content.block)
            memory.blocks.append(content.block)
            memory.content = content
        memory.published = len(memory.blocks)
        memory.length = memory.writable = memory.published * self.block_size

    def publish(self, memory: SequenceMemory) -> None:
        for index in range(memory.published, memory.length // self.block_size):
            tokens = self._tokens(memory, index)
            content = self._find(memory, tokens)
            if content is None:
                block = memory.blocks[index]
                content = Content(memory.namespace, memory.content, tokens, self._hash(memory, tokens), block)
                self._by_hash.setdefault(content.hash, []).append(content)
                self._of_block[block] = content
            memory.content = content
            memory.published = index + 1

    def cached(self) -> Iterable[int]:
        return (block for block in self._of_block if not self.pool.references(block))

    def _find(self, memory: SequenceMemory, tokens: bytes) -> Content | None:
        """The published content that follows ``memory.content`` with ``tokens``."""
        for content in self._by_hash.get(self._hash(memory, tokens), ()):
            if (
                content.previous is memory.content
                and content.tokens == tokens
                and content.namespace == memory.namespace
            ):
                return content
        return None

    def _hash(self, memory: SequenceMemory, tokens: bytes) -> int:
        before = hash(memory.namespace) if memory.content is None else memory.content.hash
        return self._hasher(before, tokens)

    def _tokens(self, memory: SequenceMemory, index: int) -> bytes:
        start = index * self.block_size
        return array("q", memory.tokens[start : start + self.block_size]).tobytes()

    def _forget(self, content: Content) -> None:
        same_hash = self._by_hash[content.hash]
        same_hash.remove(content)
        if not same_hash:
            del self._by_hash[content.hash]
