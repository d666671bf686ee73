"""Memory of counters: zero before and after every launch, and never returned to the driver.

A captured CUDA graph keeps addresses beyond the life of the bound plan that they belong to, so the memory lives as long
as the process. What a plan releases goes to the next plan that needs as much.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

_ALIGNMENT = 256
_CHUNK_BYTES = 1 << 20


class CounterPool:
    """Pieces of zeroed device memory. allocate: device address of that many zero bytes, 256-byte aligned."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        self._allocate = allocate
        # Reentrant: a plan may be collected, and release its memory, while another allocates.
        self._lock = threading.RLock()
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._next, self._end = 0, 0

    def take(self, nbytes: int) -> int:
        """The address of ``nbytes`` bytes of zeros that are in no other hands."""
        size = _rounded(nbytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            if self._end - self._next < size:
                chunk = max(size, _CHUNK_BYTES)
                self._next = self._allocate(chunk)
                self._end = self._next + chunk
            address, self._next = self._next, self._next + size
            return address

    def release(self, address: int, nbytes: int) -> None:
        """Return what ``take(nbytes)`` gave; it is zero again by the contract of counters."""
        with self._lock:
            self._free[_rounded(nbytes)].append(address)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
