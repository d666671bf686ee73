"""Whether the pools can hold a request."""

from __future__ import annotations

from collections.abc import Iterable

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.scheduler.request import ScheduledRequest
from hybridge.runtime.scheduler.settings import SchedulerSettings


class Capacity:
    """Refuses requests that could never run. ``blocks`` and ``slots`` are what pinned prefixes leave to sequences."""

    def __init__(self, manager: BlockManager, settings: SchedulerSettings) -> None:
        """EngineError when the pools cannot hold one sequence of max_seq_len."""
        self._manager, self._settings = manager, settings
        self.set_aside(0, 0)
        blocks, slots = self._longest()
        if blocks > self.blocks or slots > self.slots:
            raise EngineError(
                f"expected pools of at least {blocks} blocks and {slots} slots, which one sequence of "
                f"{settings.max_seq_len} tokens takes, found {self.blocks} and {self.slots}: give them more memory, or "
                "lower max_seq_len"
            )

    def set_aside(self, blocks: int, slots: int) -> None:
        """Record how much pinned prefixes hold."""
        self.blocks = self._manager.pool.num_blocks - blocks
        self.slots = self._manager.slots.num_slots - slots

    def check_pinned(self, blocks: int, slots: int, name: str, running: Iterable[ScheduledRequest] = ()) -> None:
        """RequestError unless pinned prefixes may hold this much, with that of ``name``, and the requests ``running``
        still find what they need."""
        longest = self._longest()
        for request in running:
            needed = self._needed(request)
            longest = max(longest[0], needed[0]), max(longest[1], needed[1])
        left = self._manager.pool.num_blocks - blocks, self._manager.slots.num_slots - slots
        if left[0] < longest[0] or left[1] < longest[1]:
            raise RequestError(
                f"{name!r}: expected one that leaves {longest[0]} blocks and {longest[1]} slots, which a sequence of "
                f"{self._settings.max_seq_len} tokens or a running request takes, found one that leaves {left[0]} "
                f"and {left[1]}: give the pools more memory, or lower max_seq_len"
            )

    def check(self, request: ScheduledRequest) -> None:
        """RequestError when the pools could never hold the request."""
        settings = self._settings
        if request.most_tokens > settings.max_seq_len:
            raise RequestError(
                f"expected at most {settings.max_seq_len} tokens of prompt and continuation (max_seq_len), found "
                f"{request.most_tokens}: shorten the prompt, or lower max_new_tokens"
            )
        blocks, slots = self._needed(request)
        if blocks > self.blocks or slots > self.slots or request.sequences > settings.max_rows:
            raise RequestError(
                f"expected a request that the pools can hold ({self.blocks} blocks, {self.slots} slots, "
                f"{settings.max_rows} rows), found one of {blocks} blocks, {slots} slots and {request.sequences} rows: "
                "make it shorter, or give the pools more memory"
            )

    def _longest(self) -> tuple[int, int]:
        """Blocks and slots of one sequence of full length."""
        manager, settings = self._manager, self._settings
        return manager.most_blocks(settings.max_seq_len, settings.max_tokens), int(manager.needs.state)

    def _needed(self, request: ScheduledRequest) -> tuple[int, int]:
        """Blocks and slots of a request at its end."""
        manager = self._manager
        # Sequences that share a block copy it before the last one gives it back: one block more.
        blocks = request.sequences * manager.most_blocks(request.most_tokens, self._settings.max_tokens)
        return blocks + (manager.needs.kv and request.sequences > 1), request.sequences * manager.needs.state
