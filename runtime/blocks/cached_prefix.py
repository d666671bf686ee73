"""A prefix cache's record of one sequence."""

from __future__ import annotations


class CachedPrefix:
    """Only the prefix cache that created it reads and changes it. Each cache has its own subclass."""

    __slots__ = ()

    def forked(self) -> CachedPrefix | None:
        """The record for a fork with the same tokens so far."""
        return None
