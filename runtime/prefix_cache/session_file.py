"""A saved session: tokens with the KV and the states after exactly these, in one file.

::

    "HYBSESS1"  header length (8 bytes, little-endian)  header (JSON)  arrays, one after another  sha256 of all before

The arrays are those of the artifact's pools in their declared layout, so that another engine, block size or pool can
take them, in the type that the engine held them in: that of the artifact or, from ONNX Runtime, float32 for 16 bits.
The header names the weights: a session of other weights is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import HybridgeError, OutputError, RequestError
from hybridge.artifact.json_fields import Fields, is_count
from hybridge.artifact.limits import SESSION_BYTES, SESSION_HEADER_BYTES, TENSOR_AXES
from hybridge.artifact.untrusted_file import open_given, size_of
from hybridge.artifact.written_file import written_file

MAGIC = b"HYBSESS1"
VERSION = 1
_DIGEST = hashlib.sha256().digest_size
_REMEDY = "save it again"


@dataclass(frozen=True)
class SavedSession:
    """``tokens`` and the ``arrays`` by pool: KV [parts, tokens, ...], states [...]; ``weights`` says of which model."""

    weights: str
    namespace: str
    tokens: tuple[int, ...]
    arrays: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def write_session(path: Path, session: SavedSession) -> None:
    """Write ``path`` atomically. OutputError when it cannot be written."""
    arrays = {name: np.ascontiguousarray(array) for name, array in session.arrays.items()}
    listed = [
        {"name": name, "dtype": DType.from_numpy(array.dtype).value, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    header = {
        "version": VERSION,
        "weights": session.weights,
        "namespace": session.namespace,
        "tokens": list(session.tokens),
        "arrays": listed,
    }
    text = json.dumps(header).encode()
    try:
        with written_file(path) as file:
            digest = hashlib.sha256()
            for part in (MAGIC, len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_session(path: Path, limit: int = SESSION_BYTES) -> SavedSession:
    """The session in ``path``; RequestError when it is none, damaged, of another version or above ``limit`` bytes."""
    with open_given(path, limit, RequestError, _REMEDY) as file:
        try:
            header, start = _header(file, path)
            expected = start + sum(_nbytes(entry) for entry in header["arrays"]) + _DIGEST
            if (size := size_of(file)) != expected:
                raise RequestError(f"{path}: expected {expected} bytes, found {size}: it was damaged: {_REMEDY}")
            file.seek(0)
            data = file.read(expected)
            if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
                raise RequestError(f"{path}: its checksum does not fit, so it was damaged or cut off: {_REMEDY}")
            return _parsed(path, header, data[start:-_DIGEST])
        except OSError as error:
            raise RequestError(f"{path}: cannot be read: {error.strerror or error}: {_REMEDY}") from error
        except (KeyError, TypeError, ValueError, RecursionError, HybridgeError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"{path}: its header is not that of a saved session ({error}): {_REMEDY}") from error


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin; reads no more than that, and that only up to a limit."""
    start = file.read(len(MAGIC) + 8)
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if start[: len(MAGIC)] != MAGIC or len(start) < len(MAGIC) + 8:
        raise RequestError(f"{path}: expected a saved session, found something else: {_REMEDY}")
    if length > SESSION_HEADER_BYTES:
        raise RequestError(
            f"{path}: expected a header of at most {SESSION_HEADER_BYTES} bytes, found {length}: {_REMEDY}"
        )
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise RequestError(f"{path}: its header is not that of a saved session: {_REMEDY}")
    return header, len(start) + length


def _nbytes(entry: Mapping[str, Any]) -> int:
    """Bytes of the array that ``entry`` of a header describes; ValueError and its like when it describes none."""
    name, shape = entry["name"], entry["shape"]
    if not isinstance(name, str) or not isinstance(shape, list) or not all(map(is_count, shape)):
        raise ValueError(f"array {name!r:.100} of shape {shape!r:.100}")
    if len(shape) > TENSOR_AXES:
        raise ValueError(f"array {name!r:.100} of an impossible shape")
    return math.prod(shape) * DType(entry["dtype"]).itemsize


def _parsed(path: Path, header: Mapping[str, Any], data: bytes) -> SavedSession:
    """The session of a header and the bytes of its arrays, which are as many as it describes."""
    fields = Fields(header, str(path), RequestError)
    version = fields.integer("version")
    if version != VERSION:
        raise RequestError(f"{path}: expected version {VERSION} of saved sessions, found {version}: save it again")
    arrays, end = {}, 0
    for entry in fields.array("arrays"):
        dtype, shape = np.dtype(DType(entry["dtype"]).numpy), tuple(entry["shape"])
        arrays[entry["name"]] = np.frombuffer(data, dtype, math.prod(shape), end).reshape(shape)
        end += math.prod(shape) * dtype.itemsize
    tokens = tuple(fields.array("tokens"))
    if len(arrays) != len(fields.array("arrays")) or not all(isinstance(token, int) for token in tokens):
        raise RequestError(f"{path}: expected tokens and arrays of different names, found others: {_REMEDY}")
    return SavedSession(fields.string("weights"), fields.string("namespace"), tokens, arrays)
