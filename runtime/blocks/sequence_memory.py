"""The memory of one sequence in the pools."""

from __future__ import annotations

import sys

from hybridge.runtime.blocks.cached_prefix import CachedPrefix

NONE = -1
NEVER = sys.maxsize


class SequenceMemory:
    """The blocks, the slot and the table row of one sequence, and how many of its tokens they hold.

    ``BlockManager`` alone changes the fields; all others read them.

    tokens    all tokens of the sequence, computed or not; the list belongs to the sequence, which appends to it
    length    tokens in the cache; recurrent states have consumed exactly these
    blocks    block of each block_size tokens; the first ``passed`` ones fell out of the sliding window and are -1
    writable  tokens up to which the blocks can be written: beyond, the block is missing or shared
    slot, row -1 while it has none
    source    slot of the prefix cache's state with which it begins, until that is copied; -1: none
    stop      tokens at which a step ends, because the prefix cache takes a checkpoint there
    checkpoints  numbers of prompt tokens after which the request wants a checkpoint
    exact     whether blocks and slot hold just what ``length`` says: not before a copy, and not after a failure
    prefix    what the prefix cache knows of the tokens
    """

    __slots__ = (
        "blocks",
        "checkpoints",
        "exact",
        "length",
        "namespace",
        "passed",
        "prefix",
        "row",
        "slot",
        "source",
        "stop",
        "tokens",
        "writable",
    )

    def __init__(self, tokens: list[int], namespace: str = "", checkpoints: tuple[int, ...] = ()) -> None:
        self.tokens = tokens
        self.namespace, self.checkpoints = namespace, checkpoints
        self.blocks: list[int] = []
        self.length = self.passed = self.writable = 0
        self.slot = self.row = self.source = NONE
        self.stop = NEVER
        self.exact = False
        self.prefix: CachedPrefix | None = None

    @property
    def slots(self) -> list[int]:
        """The slot that it owns, if it has one."""
        return [] if self.slot == NONE else [self.slot]

    @property
    def owned_blocks(self) -> list[int]:
        """The blocks that it has a reference to."""
        return self.blocks[self.passed :]
