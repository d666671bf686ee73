"""Insertions and removals of the tree, in order: enough to maintain a copy of its contents.

KV_INSERTED and KV_REMOVED are about tokens ``start`` to ``end`` of a sequence, STATE_INSERTED and STATE_REMOVED about
the state after ``end`` tokens. Where nodes begin and end is not part of the events.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from hybridge.runtime.prefix_cache.token_key import tokens_from_key


class Change(Enum):
    """Kinds of events."""

    KV_INSERTED = "kv_inserted"
    STATE_INSERTED = "state_inserted"
    KV_REMOVED = "kv_removed"
    STATE_REMOVED = "state_removed"


class Event(NamedTuple):
    """The KV of ``tokens`` of ``namespace`` from ``start`` on, or the state after them, was inserted or removed.

    parts: the key of these tokens in pieces, which the event shares with the tree.
    """

    change: Change
    namespace: str
    start: int
    end: int
    parts: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Event({self.change}, {self.namespace!r}, {self.start}, {self.end})"  # without the tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """All ``end`` tokens from the first one on."""
        return tuple(tokens_from_key(b"".join(self.parts)).tolist())


class EventLog:
    """The latest events: up to ``capacity``, of up to ``tokens`` tokens. Older ones are dropped and counted."""

    def __init__(self, capacity: int = 4096, tokens: int = 1 << 24) -> None:
        self.capacity = capacity
        self._most = tokens
        self._events: deque[Event] = deque()
        self._tokens = self.recorded = 0

    def record(self, event: Event) -> None:
        self._events.append(event)
        self._tokens += event.end
        self.recorded += 1
        while len(self._events) > self.capacity or self._tokens > self._most:
            self._tokens -= self._events.popleft().end

    @property
    def dropped(self) -> int:
        """Number of events dropped from the log since the last ``drain``; if any, a copy must start over."""
        return self.recorded - len(self._events)

    def lose(self) -> None:
        """Something has changed without an event."""
        self._events.clear()
        self._tokens = 0
        self.recorded += 1

    def drain(self) -> list[Event]:
        """The events since the last call, oldest first, as far as the log still has them."""
        events = list(self._events)
        self._events.clear()
        self._tokens = self.recorded = 0
        return events
