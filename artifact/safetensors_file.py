"""Read the header of a safetensors file, and map single tensors, without loading the file.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from artifact.dtypes import DType
from artifact.errors import CheckpointError, UnsupportedError

# The reference implementation refuses larger headers.
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor lies: ``offset`` and ``nbytes`` count bytes from the start of ``path``."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int

    def map(self) -> np.ndarray:
        """The tensor as a read-only memory map of shape ``shape``; nothing is read until it is used."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype.numpy)
        raw = np.memmap(self.path, np.uint8, "r", self.offset, (self.nbytes,))
        return raw.view(self.dtype.numpy).reshape(self.shape)


@dataclass(frozen=True)
class SafetensorsFile:
    """The validated header of one file: ``data_start`` is the byte where the data section begins."""

    path: Path
    tensors: Mapping[str, TensorSlot]
    metadata: Mapping[str, str]
    data_start: int
    nbytes: int


def read_safetensors(path: Path) -> SafetensorsFile:
    """Read and validate the header of ``path``; CheckpointError if it is truncated, corrupt or contradicts its size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            raw, data_start = _header_bytes(file.read(8), file, path, size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not valid JSON ({error}): fetch the file again") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: expected a JSON object as header, found {type(header).__name__}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is not an object of strings: fetch the file again")
    tensors = {name: _slot(name, entry, path, data_start, size) for name, entry in header.items()}
    _check_layout(tensors, path, data_start, size)
    return SafetensorsFile(path, MappingProxyType(tensors), MappingProxyType(metadata), data_start, size)


def _header_bytes(prefix: bytes, file: BinaryIO, path: Path, size: int) -> tuple[bytes, int]:
    if len(prefix) < 8:
        raise CheckpointError(f"{path}: expected a safetensors file, found only {size} bytes: fetch it again")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise CheckpointError(
            f"{path}: the header claims {length} bytes, the file has {size}: truncated or not safetensors"
        )
    return file.read(length), 8 + length


def _slot(name: str, entry: object, path: Path, data_start: int, size: int) -> TensorSlot:
    try:
        dtype = DType.from_safetensors(entry["dtype"])  # type: ignore[index]
        shape = tuple(_size(n) for n in entry["shape"])  # type: ignore[index]
        begin, end = (_size(n) for n in entry["data_offsets"])  # type: ignore[index]
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: tensor {name}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name} has a malformed header entry: fetch the file again") from error
    nbytes = math.prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        raise CheckpointError(
            f"{path}: {name}: {dtype.value}{list(shape)} needs {nbytes} bytes, the header gives {end - begin}"
        )
    if data_start + end > size:
        raise CheckpointError(f"{path}: tensor {name} ends at byte {data_start + end}, found {size}: fetch it again")
    return TensorSlot(name, dtype, shape, path, data_start + begin, nbytes)


def _size(value: object) -> int:
    """A dimension or an offset; ValueError for anything but an integer that 64 bits hold."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a size, found {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The JSON object of ``pairs``; ValueError when a key is given twice, because readers differ in which they take."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name is given twice")
    return entries


def _check_layout(tensors: Mapping[str, TensorSlot], path: Path, data_start: int, size: int) -> None:
    """Tensors must tile the data section: no overlap, no gap, no tail (so a flipped length is noticed)."""
    position = data_start
    for slot in sorted(tensors.values(), key=lambda s: (s.offset, s.nbytes)):
        if slot.offset != position:
            raise CheckpointError(
                f"{path}: tensor {slot.name} does not start where the one before it ends: corrupt header"
            )
        position += slot.nbytes
    if position != size:
        raise CheckpointError(
            f"{path}: the header describes {position} bytes, the file has {size}: truncated or corrupt"
        )
