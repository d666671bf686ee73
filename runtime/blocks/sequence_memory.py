"""What one sequence holds in the pools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridge.runtime.blocks.prefix_caching import Content
    from hybridge.runtime.prefix_cache.known_prefix import KnownPrefix

NONE = -1
NEVER = sys.maxsize


class SequenceMemory:
    """The blocks, the slot and the table row of one sequence, and how many of its tokens they hold.

    tokens    all tokens of the sequence, computed or not; the list belongs to the sequence, which appends to it
    length    tokens in the cache; recurrent states have consumed exactly these
    blocks    block of each block_size tokens; the first ``passed`` ones fell out of the sliding window and are -1
    writable  tokens up to which the blocks can be written: beyond, the block is missing or shared
    slot, row -1 while it has none
    candidates  slots for the states after tokens that may turn out wrong; none without speculation
    spare     a slot of the prefix cache's states, to which its own is copied; -1: none
    source    slot of the prefix cache's states with which it begins; -1: none
    stop      tokens at which a step ends, because the prefix cache wants the state
    computes_all  whether it begins with nothing that others computed
    exact     whether blocks and slot hold just what ``length`` says: not before a copy, and not after a failure
    content, prefix  what allocators know of its first ``published`` blocks, and of its tokens
    """

    __slots__ = (
        "blocks",
        "candidates",
        "computes_all",
        "content",
        "exact",
        "length",
        "namespace",
        "passed",
        "prefix",
        "published",
        "row",
        "slot",
        "source",
        "spare",
        "stop",
        "tokens",
        "writable",
    )

    def __init__(self, tokens: list[int], namespace: str = "") -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.blocks: list[int] = []
        self.candidates: list[int] = []
        self.length = self.passed = self.writable = self.published = 0
        self.slot = self.row = self.spare = self.source = NONE
        self.stop = NEVER
        self.exact = self.computes_all = False
        self.content: Content | None = None
        self.prefix: KnownPrefix | None = None

    @property
    def slots(self) -> list[int]:
        """The slots for states of rows that it owns."""
        return [slot for slot in (self.slot, *self.candidates) if slot != NONE]

    @property
    def spares(self) -> list[int]:
        """Those among the prefix cache's states."""
        return [] if self.spare == NONE else [self.spare]

    @property
    def held(self) -> list[int]:
        """The blocks that it has a reference to."""
        return self.blocks[self.passed :]
