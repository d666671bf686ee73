"""The radix tree's record of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.blocks.cached_prefix import CachedPrefix
from hybridge.runtime.blocks.sequence_memory import NEVER, SequenceMemory
from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES, key_from_tokens


class RadixPrefix(CachedPrefix):
    """The key of a sequence as far as it was needed, and where the sequence stands in the tree.

    node    the deepest node that the sequence has locked; state_locked: its state too, which is not copied yet
    stops   tokens after which a state is taken, and why, the nearest last; kind: why, at the next one
    value   of the checkpoints that the present step takes, at most
    prompt  tokens at the start; cacheable: how many of these could come from the cache
    known   tokens whose KV the cache had; length: tokens that it began with
    branch_point  tokens after which it differs from all earlier prompts, or 0
    """

    __slots__ = (
        "_key",
        "branch_point",
        "cacheable",
        "kind",
        "known",
        "length",
        "node",
        "prompt",
        "state_locked",
        "stops",
        "value",
    )

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.node: Node | None = None
        self.state_locked = False
        self.stops: list[tuple[int, CheckpointKind]] = []
        self.kind = CheckpointKind.DECODE
        self.value = 0.0
        self.prompt = self.cacheable = self.known = self.length = self.branch_point = 0

    @staticmethod
    def of(memory: SequenceMemory) -> RadixPrefix:
        """The record of ``memory``, which has been matched or forked."""
        assert isinstance(memory.prefix, RadixPrefix)
        return memory.prefix

    def forked(self) -> RadixPrefix:
        """The record of a sequence with the same tokens, without locks or checkpoints."""
        return RadixPrefix(self._key)

    def key(self, tokens: Sequence[int], length: int) -> bytes:
        """The key of the first ``length`` of ``tokens``, which only ever grow."""
        have = len(self._key) // TOKEN_BYTES
        if have < length:
            self._key += key_from_tokens(tokens[have:length])
            have = length
        return self._key if have == length else self._key[: length * TOKEN_BYTES]

    def stops_until(self, end: int, stop: int, interval: int | None) -> list[tuple[int, CheckpointKind]]:
        """``stop``, which is the next one, and those after it up to ``end`` tokens, with why; ``interval`` as in
        ``next_stop``."""
        ahead = RadixPrefix()
        ahead.stops, ahead.kind, ahead.prompt = self.stops.copy(), self.kind, self.prompt
        found = []
        while stop <= end:
            found.append((stop, ahead.kind))
            stop = ahead.next_stop(stop, interval)
        return found

    def next_stop(self, length: int, interval: int | None) -> int:
        """The next stop after ``length`` tokens, whose ``kind`` this remembers.

        Behind the prompt there is one every ``interval`` tokens, or none.
        """
        while self.stops:
            stop, self.kind = self.stops.pop()
            if stop > length:
                return stop
        self.kind = CheckpointKind.DECODE
        if interval is None:
            return NEVER
        return self.prompt + ((max(0, length - self.prompt)) // interval + 1) * interval
