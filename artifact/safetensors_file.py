"""Read the header of a safetensors file, and map single tensors, without loading the file.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.limits import SAFETENSORS_HEADER_BYTES, TENSOR_AXES
from hybridge.artifact.mapped_file import map_inside
from hybridge.artifact.untrusted_file import open_inside, size_of

_REMEDY = "fetch it again"
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor is: ``offset`` and ``nbytes`` count bytes from the start of ``path``."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int

    def map(self) -> np.ndarray:
        """The tensor as a read-only memory map of shape ``shape``; nothing is read until it is used."""
        raw = map_inside(self.path.parent, self.path.name, self.offset, self.nbytes, error=CheckpointError)
        return raw.view(self.dtype.numpy).reshape(self.shape)


@dataclass(frozen=True)
class SafetensorsFile:
    """The validated header of one file: ``data_start`` is the byte where the data section begins.

    header_sha256: of all bytes before that, which detects a replaced file.
    """

    path: Path
    tensors: Mapping[str, TensorSlot]
    metadata: Mapping[str, str]
    data_start: int
    nbytes: int
    header_sha256: str


def read_safetensors(path: Path, folder: Path | None = None) -> SafetensorsFile:
    """Read and validate the header of ``path``, a file of the untrusted ``folder`` (default: the one that it is in).

    CheckpointError: it is missing, leaves the folder, is truncated, corrupt or contradicts its size.
    """
    folder = folder or path.parent
    with open_inside(folder, path.relative_to(folder), None, CheckpointError, _REMEDY) as file:
        size = size_of(file)
        try:
            raw, data_start = _header_bytes(file.read(8), file, path, size)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}: {_REMEDY}") from error
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
    digest = hashlib.sha256(struct.pack("<Q", len(raw)) + raw).hexdigest()
    return SafetensorsFile(path, MappingProxyType(tensors), MappingProxyType(metadata), data_start, size, digest)


def has_header_of(path: Path, folder: Path, file: SafetensorsFile) -> bool:
    """Whether ``path``, a file of the untrusted ``folder``, has the size and the header of ``file``.

    CheckpointError: it cannot be read.
    """
    with open_inside(folder, path.relative_to(folder), None, CheckpointError, _REMEDY) as opened:
        found = size_of(opened), hashlib.sha256(opened.read(file.data_start)).hexdigest()
    return found == (file.nbytes, file.header_sha256)


def copy_tensor(reader: BinaryIO, slot: TensorSlot, writer: BinaryIO) -> None:
    """Write the bytes of ``slot`` to ``writer``; ``reader`` is the tensor's file, opened and checked.

    CheckpointError: the file ends before the tensor does. OSError: the disk is full or not writable.
    """
    reader.seek(slot.offset)
    left = slot.nbytes
    while left:
        block = reader.read(min(left, _COPY_BYTES))
        if not block:
            raise CheckpointError(f"{slot.path}: ends inside tensor {slot.name}: {_REMEDY}")
        writer.write(block)
        left -= len(block)


def _header_bytes(prefix: bytes, file: BinaryIO, path: Path, size: int) -> tuple[bytes, int]:
    if len(prefix) < 8:
        raise CheckpointError(f"{path}: expected a safetensors file, found only {size} bytes: fetch it again")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(SAFETENSORS_HEADER_BYTES, size - 8):
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
    if len(shape) > TENSOR_AXES:
        raise CheckpointError(
            f"{path}: tensor {name}: expected at most {TENSOR_AXES} axes, found {len(shape)}: {_REMEDY}"
        )
    nbytes = dtype.nbytes(math.prod(shape))
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
    """The JSON object of ``pairs``; ValueError for a repeated key, as readers disagree on which one counts."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name is given twice")
    return entries


def _check_layout(tensors: Mapping[str, TensorSlot], path: Path, data_start: int, size: int) -> None:
    """Tensors must tile the data section: no overlap, no gap, no tail (so a flipped length is noticed)."""
    position = data_start
    for slot in sorted(tensors.values(), key=lambda s: (s.offset, s.nbytes)):
        if slot.offset != position:
            raise CheckpointError(f"{path}: tensor {slot.name} does not start where the one before it ends: {_REMEDY}")
        position += slot.nbytes
    if position != size:
        raise CheckpointError(f"{path}: expected {position} bytes according to its header, found {size}: {_REMEDY}")
