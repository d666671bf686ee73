"""Memory in huge pages: one or two threads read small pages more slowly, and each small page costs a page fault."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeVar

import numpy as np

from hybridge.artifact.limits import MIB

# NumPy asks Linux for huge pages (2 MiB) for arrays from 4 MiB on.
_CHUNK = 64 * MIB
_ALIGNMENT = 64

K = TypeVar("K")


class HugePages:
    """Gives out parts of large arrays; a part lives as long as any array that views it.

    Only pages that are used take memory.
    """

    def __init__(self, chunk: int = _CHUNK) -> None:
        """chunk: bytes of an array of which parts are given out; larger parts get arrays of their own."""
        self._chunk = chunk
        self._rest = np.empty(0, np.uint8)

    def zeros(self, nbytes: int) -> np.ndarray:
        """``nbytes`` zeros [nbytes] uint8, aligned for vectors. MemoryError without enough memory."""
        needed = nbytes + _ALIGNMENT
        if needed > self._rest.size:
            found = np.zeros(max(needed, self._chunk), np.uint8)
            # The smaller remainder is given up.
            self._rest = max(self._rest, found[needed:], key=len)
        else:
            found, self._rest = self._rest[:needed], self._rest[needed:]
        start = -found.ctypes.data % _ALIGNMENT
        return found[start : start + nbytes]


def zeros_together(shapes: Mapping[K, tuple[tuple[int, ...], np.dtype]]) -> dict[K, np.ndarray]:
    """Zeroed arrays of the ``shapes`` and types, in one block of memory. MemoryError without enough."""
    sizes = {key: prod(shape) * dtype.itemsize for key, (shape, dtype) in shapes.items()}
    pages = HugePages(sum(sizes.values()) + _ALIGNMENT * len(sizes))
    return {key: pages.zeros(sizes[key]).view(dtype).reshape(shape) for key, (shape, dtype) in shapes.items()}
