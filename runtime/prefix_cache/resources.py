"""The resources of a tree: references to KV blocks, and slots of recurrent states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class BlockReferences(Protocol):
    """A pool of KV blocks with reference counts."""

    def retain(self, blocks: Sequence[int]) -> None:
        """Add one reference to each of the blocks."""

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; a block without any is free."""


class StateSlots(Protocol):
    """A pool of state slots, each with one owner."""

    def release(self, slots: Sequence[int]) -> None:
        """Return slots to the pool."""
