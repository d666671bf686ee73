"""The size of KV caches that grow with their rows."""

from __future__ import annotations

FIRST_CAPACITY = 256


def capacity_for(tokens: int, limit: int) -> int:
    """Positions of a cache for ``tokens`` tokens: FIRST_CAPACITY, doubled until they fit, at most ``limit``."""
    capacity = FIRST_CAPACITY
    while capacity < tokens:
        capacity *= 2
    return min(capacity, limit)
