"""Copies tensors from a checkpoint's files, each of which is opened once."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from io import BufferedReader, FileIO
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.artifact.untrusted_file import open_inside
from hybridge.exporter.weights.file_copy import CANNOT_OFFLOAD

# Small blocks stay in the processor's caches between the read and the write.
_BLOCK_BYTES = 1 << 20
# Copied by one call, which no signal interrupts.
_OFFLOADED_BYTES = 1 << 26
_REMEDY = "export again"


class SourceFiles:
    """A context manager; files are open until it ends. CheckpointError, of all methods: a file cannot be read."""

    def __init__(self) -> None:
        self._files: dict[Path, FileIO] = {}
        self._open = ExitStack()

    def __enter__(self) -> SourceFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def read(self, slot: TensorSlot) -> np.ndarray:
        """The bytes of ``slot``: uint8 [nbytes]."""
        raw = np.empty(slot.nbytes, np.uint8)
        self._read_into(raw, slot, slot.offset)
        return raw

    def copy(self, slot: TensorSlot, writer: FileIO) -> None:
        """Write the bytes of ``slot`` to ``writer``; holes of a sparse file stay holes.

        OSError: the disk is full or not writable.
        """
        file, at, end = self._file_of(slot), slot.offset, slot.offset + slot.nbytes
        while at < end:
            start, stop = _next_data(file, at, end)
            writer.seek(start - at, os.SEEK_CUR)
            self._copy_range(slot, start, stop, writer)
            at = stop

    def copy_rows_apart(self, slot: TensorSlot, writer: FileIO) -> None:
        """Write the rows of ``slot``, those with even numbers before the others.

        OSError: the disk is full or not writable.
        """
        end = slot.offset + slot.nbytes
        if _next_data(self._file_of(slot), slot.offset, end) == (end, end):
            writer.seek(slot.nbytes, os.SEEK_CUR)
            return
        whole = self.read(slot).reshape(slot.shape[0], -1)
        step = max(1, _BLOCK_BYTES // whole.shape[1])
        for half in (whole[0::2], whole[1::2]):
            for start in range(0, len(half), step):
                write_all(writer, np.ascontiguousarray(half[start : start + step]))

    def _file_of(self, slot: TensorSlot) -> FileIO:
        """The file of ``slot``, without a buffer, which would not know of system calls that move the position."""
        path = slot.path
        if path not in self._files:
            opened = open_inside(path.parent, path.name, None, CheckpointError, _REMEDY)
            self._files[path] = cast(FileIO, cast(BufferedReader, self._open.enter_context(opened)).raw)
        if os.fstat(self._files[path].fileno()).st_size < slot.offset + slot.nbytes:
            raise CheckpointError(f"{path}: ends inside tensor {slot.name}: {_REMEDY}")
        return self._files[path]

    def _copy_range(self, slot: TensorSlot, start: int, stop: int, writer: FileIO) -> None:
        file = self._file_of(slot)
        while start < stop:
            count = _offloaded(file, start, min(stop - start, _OFFLOADED_BYTES), writer)
            if not count:  # the kernel cannot serve the call, or the file ended
                block = np.empty(min(stop - start, _BLOCK_BYTES), np.uint8)
                self._read_into(block, slot, start)
                write_all(writer, block)
                count = len(block)
            start += count

    def _read_into(self, raw: np.ndarray, slot: TensorSlot, offset: int) -> None:
        """Fill ``raw`` with the bytes of the file of ``slot`` from ``offset`` on."""
        file, view = self._file_of(slot), memoryview(raw)  # type: ignore[arg-type]
        file.seek(offset)
        while view:
            count = file.readinto(view)
            if not count:
                raise CheckpointError(f"{slot.path}: ends inside tensor {slot.name}: {_REMEDY}")
            view = view[count:]


def write_all(writer: FileIO, raw: np.ndarray) -> None:
    """Write the contiguous array ``raw``. OSError: the disk is full or not writable."""
    view = memoryview(raw.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while view:
        view = view[writer.write(view) :]


def _next_data(file: FileIO, start: int, end: int) -> tuple[int, int]:
    """The first range of ``file`` in [start, end) that is no hole; (end, end) if there is none."""
    if not hasattr(os, "SEEK_DATA"):
        return start, end
    try:
        first = os.lseek(file.fileno(), start, os.SEEK_DATA)
        return (first, min(end, os.lseek(file.fileno(), first, os.SEEK_HOLE))) if first < end else (end, end)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file
            return end, end
        return start, end  # the file system does not know its holes


def _offloaded(file: FileIO, offset: int, count: int, writer: FileIO) -> int:
    """Bytes that the kernel copied, 0 where it cannot."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(file.fileno(), writer.fileno(), count, offset)
    except OSError as error:
        if error.errno in CANNOT_OFFLOAD:
            return 0
        raise
