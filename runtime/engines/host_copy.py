"""Blocks and slots in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod


class HostCopy(ABC):
    """Blocks and slots that ``PagedEngine.swap_out`` copied to host memory; freed with its last reference."""

    blocks: int
    slots: int

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of host memory."""
