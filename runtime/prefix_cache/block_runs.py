"""Which KV blocks a run of tokens touches, where runs begin and end inside blocks.

A node from token 10 to 40 with blocks of 16 tokens touches the blocks 0, 1 and 2; its parent, which ends at 10, touches
block 0 too. Both hold a reference, to the same block or to two copies of it that agree in their first 10 tokens.
"""

from __future__ import annotations

from hybridge.runtime.prefix_cache.node import Node


def block_span(start: int, end: int, block_size: int) -> tuple[int, int]:
    """First and last (exclusive) index of the blocks that tokens start..end (at least one) touch."""
    return start // block_size, -(-end // block_size)


def split_blocks(node: Node, at: int, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The blocks of ``node`` before and after token ``at``, inside it, and those that both parts hold."""
    first, last = block_span(node.start, at, block_size)
    upper = node.blocks[: last - first]
    lower = node.blocks[at // block_size - first :]
    return upper, lower, upper[-1:] if at % block_size else ()


def join_blocks(upper: Node, lower: Node, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks of both runs as one, and those to release: where both share a block, that of ``lower`` is used."""
    if lower.start % block_size:
        return upper.blocks[:-1] + lower.blocks, upper.blocks[-1:]
    return upper.blocks + lower.blocks, ()


def blocks_of_path(node: Node, length: int, block_size: int) -> list[int]:
    """The blocks of the first ``length`` tokens up to ``node``; the deepest node that touches a block decides."""
    blocks: list[int] = []
    for part in node.path():
        first = part.start // block_size
        blocks[first:] = part.blocks
    return blocks[: -(-length // block_size)]
