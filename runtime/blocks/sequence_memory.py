"""What one sequence holds in the pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.blocks.prefix_caching import Content

NONE = -1


class SequenceMemory:
    """The blocks, the slot and the table row of one sequence, and how many of its tokens they hold.

    tokens    all tokens of the sequence, computed or not; the list belongs to the sequence, which appends to it
    length    tokens in the cache; recurrent states have consumed exactly these
    blocks    block of each block_size tokens; the first ``passed`` ones fell out of the sliding window and are -1
    writable  tokens up to which the blocks can be written: beyond, the block is missing or shared
    slot, row -1 while it has none
    content   what allocators know of its first ``published`` blocks
    """

    __slots__ = (
        "blocks",
        "content",
        "length",
        "namespace",
        "passed",
        "published",
        "row",
        "slot",
        "tokens",
        "writable",
    )

    def __init__(self, tokens: list[int], namespace: str = "") -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.blocks: list[int] = []
        self.length = self.passed = self.writable = self.published = 0
        self.slot = self.row = NONE
        self.content: Content | None = None

    @property
    def held(self) -> list[int]:
        """The blocks that it has a reference to."""
        return self.blocks[self.passed :]
