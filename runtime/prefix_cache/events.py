"""What the tree took in and gave up, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """Kinds of events."""

    KV_INSERTED = "kv_inserted"
    STATE_INSERTED = "state_inserted"
    KV_REMOVED = "kv_removed"
    STATE_REMOVED = "state_removed"


@dataclass(frozen=True)
class Event:
    """``tokens`` of the sequence of ``namespace`` up to position ``end``: only those from ``start`` changed hands."""

    change: Change
    namespace: str
    start: int
    end: int


class EventLog:
    """The latest events, up to ``capacity``; older ones are dropped and counted."""

    def __init__(self, capacity: int = 4096) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self.recorded = 0

    def record(self, event: Event) -> None:
        self._events.append(event)
        self.recorded += 1

    @property
    def dropped(self) -> int:
        """Events that are in the log no more."""
        return self.recorded - len(self._events)

    def drain(self) -> list[Event]:
        """The events since the last call, oldest first, as far as the log still has them."""
        events = list(self._events)
        self._events.clear()
        self.recorded = 0
        return events
