"""Put a second name, or a second copy, of a large file into another folder at the least cost."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 22
# ioctl request of Linux that shares the blocks of another file (copy on write), on file systems that can.
_FICLONE = 0x40049409
# The file system cannot link, or will not for this file: fall back to a copy.
_CANNOT_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
)
# copy_file_range cannot serve this pair of files: fall back to read and write.
CANNOT_OFFLOAD = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF, errno.EPERM})


def reflink_file(reader: BinaryIO, source: Path, target: Path) -> bool:
    """Make ``target`` a file that shares the blocks of ``reader``, copy on write; False where that cannot be.

    source: the name of the open file, which is not read. The new file is independent: later changes of the
    other do not reach it, and tools that refuse files with several hard links open it.
    """
    return _clone_file(reader, target)


def link_file(reader: BinaryIO, source: Path, target: Path) -> bool:
    """Make ``target`` a hard link of the file ``source``, open as ``reader``; False where that cannot be."""
    return _link_file(source, target)


def copy_file(reader: BinaryIO, target: Path) -> None:
    """Copy the unread file ``reader`` to the new file ``target``. OSError when the disk is full or not writable."""
    with target.open("xb") as writer:
        if _clone(reader, writer):
            return
        # The first stops where the kernel cannot serve the call (some answer 0); the second does the rest.
        for step in (_copy_range, _copy_block):
            while step(reader, writer):
                pass


def _link_file(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _CANNOT_LINK:
            return False
        raise
    return True


def _clone_file(reader: BinaryIO, target: Path) -> bool:
    with target.open("xb") as writer:
        if _clone(reader, writer):
            return True
    target.unlink()
    return False


def _clone(reader: BinaryIO, writer: BinaryIO) -> bool:
    try:
        import fcntl
    except ImportError:  # not Unix
        return False
    with contextlib.suppress(OSError):
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        return True
    return False


def _copy_range(reader: BinaryIO, writer: BinaryIO) -> int:
    """Let the kernel copy the next block; the number of bytes, 0 at the end or where it cannot."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(reader.fileno(), writer.fileno(), _BLOCK)
    except OSError as error:
        if error.errno in CANNOT_OFFLOAD:
            return 0
        raise


def _copy_block(reader: BinaryIO, writer: BinaryIO) -> int:
    """Read and write the next block; the number of bytes, 0 at the end."""
    block = os.read(reader.fileno(), _BLOCK)
    view = memoryview(block)
    while view:
        view = view[os.write(writer.fileno(), view) :]
    return len(block)
