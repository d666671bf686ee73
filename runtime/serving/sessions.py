"""Saving and loading sessions: the KV and states that the prefix cache has for some tokens, in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridge.artifact.bindings import BLOCK_SIZE
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.artifact.limits import SESSION_BYTES, SESSION_HEADER_BYTES
from hybridge.artifact.manifest import read_manifest
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.artifact.untrusted_file import open_inside
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.prefix_cache.session_file import SavedSession, read_session, write_session
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.transfer import DeviceCache

# Bytes at each end of a tensor that are hashed into the name of the weights.
_SAMPLE = 512


@dataclass(frozen=True)
class Session:
    """The tokens of a saved session; prompts that begin with them reuse its KV and states."""

    token_ids: tuple[int, ...]
    nbytes: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)


def save_session(device: DeviceCache, folder: Path, path: Path, tokens: Sequence[int], namespace: str) -> Session:
    """Write the longest resumable prefix of ``tokens`` to ``path``.

    RequestError when the cache has none of them, OutputError when the file cannot be written.
    """
    cache = device.cache
    match = cache.tree.match(key_from_tokens(tokens), namespace)
    if not match.length:
        raise RequestError(
            f"expected tokens that are in the prefix cache, found {len(tokens)} that are not: generate first, or "
            "give the cache more memory"
        )
    state = match.node.state if cache.needs.state else None
    blocks = cache.tree.blocks_of(match.node, match.length)
    arrays = {}
    for name, array in device.arrays(blocks, NONE if state is None else state).items():
        axes = _token_axes(device.engine)
        if name in axes:
            by_token = np.moveaxis(array, axes[name], 2)
            rows = by_token.reshape(array.shape[0], -1, *by_token.shape[3:])
            arrays[name] = rows[:, : match.length]
        else:
            arrays[name] = array[0]
    known = tuple(int(token) for token in tokens[: match.length])
    saved = SavedSession(weights_name(folder), namespace, known, arrays)
    write_session(path, saved)
    return Session(known, saved.nbytes)


def load_session(device: DeviceCache, folder: Path, path: Path) -> Session:
    """Put a saved session into the cache, as if its tokens had just been computed.

    RequestError when the file is damaged, of other weights, or does not fit into the pools.
    """
    saved = read_session(path, _most_bytes(device))
    if saved.weights != weights_name(folder):
        raise RequestError(f"{path}: expected a session of the weights in {folder}, found one of others")
    source = _Loaded(device.engine, device.cache.block_size, saved.arrays)
    try:
        _check_arrays(saved, device.engine)
        fits = device.copy_in(key_from_tokens(saved.tokens), saved.namespace, source)
    except (EngineError, ValueError) as error:
        raise RequestError(f"{path}: it does not fit this artifact ({error}): save it again") from error
    if not fits:
        raise RequestError(
            f"{path}: expected room for {len(saved.tokens)} tokens in the prefix cache, found less: increase "
            "memory_bytes, or try again"
        )
    return Session(saved.tokens, saved.nbytes)


def weights_name(folder: Path) -> str:
    """A hash that identifies the weights of an artifact without reading all of them: names, types, shapes, and the
    first and last bytes of each tensor."""
    digest = hashlib.sha256()
    for record in sorted(read_manifest(folder).files, key=lambda record: record.path):
        if not record.path.endswith(".safetensors"):
            continue
        weights = read_safetensors(folder / record.path, folder)
        digest.update(json.dumps([record.path, weights.nbytes]).encode())
        with open_inside(folder, record.path, None) as file:
            digest.update(file.read(weights.data_start))
            for tensor in sorted(weights.tensors.values(), key=lambda tensor: tensor.offset):
                for at in (0, max(0, tensor.nbytes - _SAMPLE)):
                    file.seek(tensor.offset + at)
                    digest.update(file.read(min(_SAMPLE, tensor.nbytes)))
    return digest.hexdigest()


def _most_bytes(device: DeviceCache) -> int:
    """Maximum file size of a session that fits into the pools: elements take at most 4 bytes."""
    tokens, elements = device.cache.pool.num_blocks * device.cache.block_size, 0
    for spec in device.engine.pool_specs:
        elements += spec.unit_bytes // spec.dtype.itemsize * (tokens if spec.grows else 1)
    return min(SESSION_BYTES, SESSION_HEADER_BYTES + 4 * elements)


def _check_arrays(saved: SavedSession, engine: PagedEngine) -> None:
    """ValueError unless the arrays match the artifact's pools and the number of tokens."""
    pools, found = {spec.name: spec for spec in engine.pool_specs}, saved.arrays
    if found.keys() != pools.keys() or not saved.tokens:
        raise ValueError(f"expected tokens and {', '.join(sorted(pools))}, found {', '.join(sorted(found))}")
    for name, spec in pools.items():
        dtype, shape = DType.from_numpy(found[name].dtype), found[name].shape
        types = _saved_types(spec.dtype)
        if dtype not in types or (spec.grows and shape[1:2] != (len(saved.tokens),)):
            expected = " or ".join(dtype.value for dtype in types)
            raise ValueError(
                f"{name}: expected {expected} of {len(saved.tokens)} tokens, found {dtype.value}{list(shape)}"
            )


def _saved_types(declared: DType) -> tuple[DType, ...]:
    """Types of a pool in a file: the artifact's, or float32 from an engine that widens 16-bit pools."""
    return (declared, DType.FLOAT32) if declared in (DType.FLOAT16, DType.BFLOAT16) else (declared,)


class _Loaded:
    """The arrays of a file, cut into blocks of the engine's size."""

    def __init__(self, engine: PagedEngine, block_size: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._engine, self._size = engine, block_size
        self._axes = _token_axes(engine)
        self._kv = {name: array for name, array in arrays.items() if name in self._axes}
        self._states = {name: array for name, array in arrays.items() if name not in self._axes}

    def block(self, index: int) -> HostCopy:
        parts = {}
        for name, array in self._kv.items():
            part = array[:, index * self._size : (index + 1) * self._size]
            whole = np.zeros((part.shape[0], 1, self._size, *part.shape[2:]), part.dtype)
            whole[:, 0, : part.shape[1]] = part
            parts[name] = np.moveaxis(whole, 2, self._axes[name])
        none = {name: array[None][:0] for name, array in self._states.items()}
        return self._engine.copy_from_arrays({**parts, **none}, 1, 0)

    def state(self) -> HostCopy:
        none = {}
        for name, array in self._kv.items():
            empty = np.zeros((array.shape[0], 0, self._size, *array.shape[2:]), array.dtype)
            none[name] = np.moveaxis(empty, 2, self._axes[name])
        return self._engine.copy_from_arrays({**none, **{n: a[None] for n, a in self._states.items()}}, 0, 1)


def _token_axes(engine: PagedEngine) -> dict[str, int]:
    """Pools that grow with tokens, each with the axis that counts the tokens of a block."""
    return {spec.name: spec.shape.index(BLOCK_SIZE) for spec in engine.pool_specs if spec.grows}
