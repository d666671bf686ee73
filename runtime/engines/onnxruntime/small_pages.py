"""Arrays of zeros that take memory only for pages that have been written."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

# NumPy asks Linux for huge pages (2 MiB) from this size on.
_HUGE_FROM = 1 << 22


def use_small_pages(array: np.ndarray) -> None:
    """Revoke NumPy's request for huge pages for a new array of zeros, before anything is written to it.

    Reads are up to a quarter slower then, so this is for arrays that stay mostly empty.
    """
    if sys.platform != "linux" or array.nbytes < _HUGE_FROM:
        return
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = array.ctypes.data + array.nbytes - start
    # Only a hint: a system without huge pages rejects it.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_NOHUGEPAGE)
