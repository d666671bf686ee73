"""Releases the pages of mapped weight files while TensorRT builds.

TensorRT's parser maps the files, and a build copies the weights out of them. Pages that have been read would stay
resident beside the copy, although the system can read them again at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path

# TensorRT reads about 7 GB/s of cached pages, so at most some 70 MB stay resident: with 0.1 s it was 0.75 GB.
INTERVAL_SECONDS = 0.01
# From <sys/mman.h> of Linux.
_MADV_DONTNEED = 4


@contextlib.contextmanager
def pages_released(folder: Path) -> Iterator[None]:
    """Inside of the block, release pages of files under ``folder`` every ``INTERVAL_SECONDS``; Linux only."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(INTERVAL_SECONDS):
            release_pages(folder)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def release_pages(folder: Path) -> int:
    """Release the pages of all read-only mappings of files under ``folder``; returns the bytes of these mappings."""
    total = 0
    for start, nbytes in _mappings(folder):
        address, length = ctypes.c_void_p(start), ctypes.c_size_t(nbytes)
        total += nbytes if ctypes.CDLL(None).madvise(address, length, _MADV_DONTNEED) == 0 else 0
    return total


def _mappings(folder: Path) -> list[tuple[int, int]]:
    """Start and length of the mappings; writable pages are not released: their changes would be lost."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
            span, access, *_, path = line.split(maxsplit=5)
            if access.startswith("r-") and path.startswith(f"{folder}/"):
                start, end = (int(address, 16) for address in span.split("-"))
                found.append((start, end - start))
    return found
