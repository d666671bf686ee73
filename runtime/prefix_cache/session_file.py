"""A saved session: tokens with the KV and the states after exactly these, in one file.

::

    "HYBSESS1"  header length (8 bytes, little-endian)  header (JSON)  arrays, one after the other  sha256 of all before

The arrays are those of the artifact's pools in their declared layout, so that another engine, block size or pool can
take them. The header names the weights: a session of other weights is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artifact.dtypes import DType
from artifact.errors import HybridgeError, OutputError, RequestError
from artifact.json_fields import Fields, is_count

MAGIC = b"HYBSESS1"
VERSION = 1
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class SavedSession:
    """``tokens`` and the ``arrays`` by pool: KV [2, tokens, ...] and states [...]; ``weights`` says of which model."""

    weights: str
    namespace: str
    tokens: tuple[int, ...]
    arrays: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def write_session(path: Path, session: SavedSession) -> None:
    """Write ``path`` in one piece: it is there whole or not at all. OutputError when it cannot be written."""
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
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    try:
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as file:
            for part in (MAGIC, len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def read_session(path: Path) -> SavedSession:
    """The session in ``path``; RequestError when it is none, damaged or of another version."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    start = len(MAGIC) + 8
    if len(data) < start + _DIGEST or data[: len(MAGIC)] != MAGIC:
        raise RequestError(f"{path}: expected a saved session, found something else: save it again")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise RequestError(f"{path}: its checksum does not fit, so it was damaged or cut off: save it again")
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        return _parsed(path, json.loads(data[start:end]), data[end:-_DIGEST])
    except (KeyError, TypeError, ValueError, RecursionError, HybridgeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path}: its header is not that of a saved session ({error}): save it again") from error


def _parsed(path: Path, header: Mapping[str, Any], data: bytes) -> SavedSession:
    """The session of a header and the bytes of its arrays."""
    fields = Fields(header, str(path), RequestError)
    version = fields.integer("version")
    if version != VERSION:
        raise RequestError(f"{path}: expected version {VERSION} of saved sessions, found {version}: save it again")
    arrays, end = {}, 0
    for entry in fields.array("arrays"):
        name, dtype, shape = entry["name"], np.dtype(DType(entry["dtype"]).numpy), tuple(entry["shape"])
        if not isinstance(name, str) or not all(map(is_count, shape)):
            raise ValueError(f"array {name!r} of shape {list(shape)}")
        count = math.prod(shape)
        if count * dtype.itemsize > len(data) - end:
            raise ValueError(f"array {name!r} beyond the end of the file")
        arrays[name] = np.frombuffer(data, dtype, count, end).reshape(shape)
        end += count * dtype.itemsize
    tokens = tuple(fields.array("tokens"))
    if end != len(data) or not all(isinstance(token, int) for token in tokens):
        raise RequestError(f"{path}: expected tokens and {end} bytes of arrays, found {len(data)}: save it again")
    return SavedSession(fields.string("weights"), fields.string("namespace"), tokens, arrays)
