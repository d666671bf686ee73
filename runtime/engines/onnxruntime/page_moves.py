"""Moves memory that is mapped from files to huge pages (2 MiB), while other threads read it.

Small pages are read more slowly: by 1 to 8 % on an AMD EPYC Zen 4, by half on older hosts. But to copy weights to huge
pages before the first step takes several times as long as to map their files. So files are mapped, and moved in the
background. Addresses stay the same, so code that reads the memory needs no change.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.onnxruntime.available_memory import available_memory

# Fewest bytes that are worth a thread.
LEAST_BYTES = 32 * MIB
# Seconds before pages are moved: most short commands end earlier, and the first prompt has all processors.
_DELAY = 1.0
_HUGE = 2 * MIB
# A chunk takes memory twice for a moment, and page faults of all threads wait while it is replaced. Each becomes a map
# of its own, of which Linux allows about 65,000 in a process.
_CHUNK, _MOST_CHUNKS = 8 * MIB, 1024
# Free memory that is left to others.
_RESERVE = 256 * MIB
# From linux/mman.h.
_MADV_HUGEPAGE, _MREMAP_MAYMOVE, _MREMAP_FIXED = 14, 1, 2
# A tenth of a busy processor: 1.7 GB then take some seconds.
_PRIORITY = 10
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
# Movers check the available memory one after another, so that they do not all count on the same.
_LOCK = threading.Lock()
# What mmap and mremap return if they fail.
_FAILED = ctypes.c_void_p(-1).value


class PageMover(threading.Thread):
    """A thread that moves ``parts`` to huge pages, ``delay`` seconds after its start.

    parts: arrays [nbytes] uint8 in memory that is mapped for reading and never written. Moved memory has the same
    content and address. It is no longer mapped from a file, so the system cannot drop it to free memory. The thread
    ends early where the system has no huge pages of 2 MiB, refuses a call, or has too little memory for the rest.
    """

    def __init__(self, parts: Sequence[np.ndarray], delay: float = _DELAY) -> None:
        super().__init__(name="hybridge-pages", daemon=True)
        self._parts, self._delay, self._stopped = tuple(parts), delay, threading.Event()

    def stop(self) -> None:
        """Let the thread end after the chunk that it moves."""
        self._stopped.set()

    def run(self) -> None:
        if self._stopped.wait(self._delay) or not _has_huge_pages():
            return
        with contextlib.suppress(OSError):  # Linux has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)
        chunks = [chunk for part in self._parts for chunk in _chunks(part)]
        remaining = sum(chunk.nbytes for chunk in chunks)
        for chunk in chunks:
            with _LOCK:
                enough = available_memory() >= remaining + _RESERVE
                if self._stopped.is_set() or not enough or not _replaced(chunk):
                    return
            remaining -= chunk.nbytes


def _chunks(part: np.ndarray) -> list[np.ndarray]:
    """What of ``part`` fills huge pages, in chunks of these."""
    start, stop = _rounded_up(part.ctypes.data), (part.ctypes.data + part.nbytes) // _HUGE * _HUGE
    size = max(_CHUNK, _rounded_up(part.nbytes // _MOST_CHUNKS))
    first = start - part.ctypes.data
    return [part[first + at : first + min(at + size, stop - start)] for at in range(0, stop - start, size)]


def _replaced(part: np.ndarray) -> bool:
    """Replace the memory of ``part``, which fills huge pages, by such pages of the same content; False if refused.

    The kernel lets no other thread see a moment in between: it reads the old page or the new one.
    """
    libc, nbytes = _libc(), part.nbytes
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    reserved = libc.mmap(None, nbytes + _HUGE, access, kind, -1, 0)
    if reserved == _FAILED:
        return False
    start = _rounded_up(reserved)
    # Unmap the surplus now: once the pages have moved, other threads may get memory in the range between.
    _unmap(reserved, start)
    _unmap(start + nbytes, reserved + nbytes + _HUGE)
    if libc.madvise(start, nbytes, _MADV_HUGEPAGE) == 0:
        np.copyto(np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start)), part)
        how = _MREMAP_MAYMOVE | _MREMAP_FIXED
        is_read_only = libc.mprotect(start, nbytes, mmap.PROT_READ) == 0
        if is_read_only and libc.mremap(start, nbytes, nbytes, how, part.ctypes.data) != _FAILED:
            return True
    _unmap(start, start + nbytes)
    return False


def _rounded_up(number: int) -> int:
    """``number`` or the next multiple of a huge page's bytes."""
    return -(-number // _HUGE) * _HUGE


def _unmap(start: int, stop: int) -> None:
    if stop > start:
        _libc().munmap(start, stop - start)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    """The C library; its calls release Python's lock."""
    libc = ctypes.CDLL(None)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
    libc.mremap.argtypes, libc.mremap.restype = (address, size, size, number, address), address
    libc.munmap.argtypes, libc.mprotect.argtypes = (address, size), (address, size, number)
    libc.madvise.argtypes = (address, size, number)
    return libc


def _has_huge_pages() -> bool:
    """Whether a process may ask for huge pages of 2 MiB."""
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text(encoding="ascii"):
            return False
        return int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii")) == _HUGE
    except (OSError, ValueError):
        return False
