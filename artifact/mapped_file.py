"""Mapping a part of an untrusted folder's file into memory."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path, PurePath
from typing import BinaryIO

import numpy as np

from hybridge.artifact.errors import ArtifactError, HybridgeError
from hybridge.artifact.untrusted_file import open_inside, size_of

_REMEDY = "export the checkpoint again"


def map_inside(
    folder: Path,
    name: str | PurePath,
    offset: int,
    nbytes: int,
    copy_on_write: bool = False,
    error: type[HybridgeError] = ArtifactError,
) -> np.ndarray:
    """``nbytes`` bytes [nbytes] of the file from ``offset`` on; nothing is read until it is used.

    copy_on_write: the array may be written to, the file stays unchanged; else it is read-only.
    ``error``: the file cannot be opened (artifact.untrusted_file) or is shorter.
    """
    with open_inside(folder, name, None, error, _REMEDY) as file:
        return map_open(file, folder / name, offset, nbytes, copy_on_write, error)


def map_open(
    file: BinaryIO,
    path: Path,
    offset: int,
    nbytes: int,
    copy_on_write: bool = False,
    error: type[HybridgeError] = ArtifactError,
) -> np.ndarray:
    """``map_inside`` of a file that it has opened, named ``path`` in errors; the array outlives ``file``."""
    size = size_of(file)
    if size < offset + nbytes:
        raise error(f"{path}: expected {offset + nbytes} bytes, found {size}: the file is truncated: {_REMEDY}")
    if nbytes == 0:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(file, np.uint8, "c" if copy_on_write else "r", offset, (nbytes,))
    except (OSError, ValueError) as cause:  # ValueError: it was cut after its size was read
        raise error(f"{path}: cannot be mapped into memory: {cause}: {_REMEDY}") from cause


# From linux/mman.h: write changed pages back and drop all pages from memory. Later reads find the same content.
_MADV_PAGEOUT = 21


def release_pages(address: int, nbytes: int) -> None:
    """Let the system drop the pages of memory that was mapped from a file and is not needed for a while.

    What is read from it later is the same. Does nothing where the system has no such call (Linux before 5.4, others).
    """
    if sys.platform != "linux" or nbytes <= 0:
        return
    start = address & ~(mmap.PAGESIZE - 1)
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, address + nbytes - start, _MADV_PAGEOUT)
