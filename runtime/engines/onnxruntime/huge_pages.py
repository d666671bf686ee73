"""Memory in huge pages for what every step reads: one or two threads read small pages at half of the speed."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.limits import MIB

# NumPy asks Linux for huge pages (2 MiB) for arrays from 4 MiB on.
_CHUNK = 64 * MIB
_ALIGNMENT = 64


class HugePages:
    """Gives out parts of large arrays; a part lives as long as any array that views it.

    Only pages that are written take memory.
    """

    def __init__(self) -> None:
        self._rest = np.empty(0, np.uint8)

    def array(self, nbytes: int) -> np.ndarray:
        """``nbytes`` bytes [nbytes] uint8 of any content, aligned for vectors. MemoryError without enough memory."""
        needed = nbytes + _ALIGNMENT
        if needed > self._rest.size:
            found = np.empty(max(needed, _CHUNK), np.uint8)
            # The smaller remainder is given up.
            self._rest = max(self._rest, found[needed:], key=len)
        else:
            found, self._rest = self._rest[:needed], self._rest[needed:]
        start = -found.ctypes.data % _ALIGNMENT
        return found[start : start + nbytes]
