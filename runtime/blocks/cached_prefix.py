"""What a prefix cache remembers of one sequence."""

from __future__ import annotations


class CachedPrefix:
    """Belongs to the prefix cache that made it, which alone reads and changes it. Each cache has its own kind."""

    __slots__ = ()

    def forked(self) -> CachedPrefix | None:
        """What the cache knows of a second sequence with the same tokens so far."""
        return None
