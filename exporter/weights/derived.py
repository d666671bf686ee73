"""Write the tensors that had to change into one safetensors file, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from artifact.dtypes import DType
from artifact.errors import CheckpointError, ExportError
from artifact.safetensors_file import TensorSlot, read_safetensors

DERIVED_FILE = "derived.safetensors"
# The data section starts at a multiple of this; wider elements come first, so that every tensor is aligned to its own.
_ALIGNMENT = 64


@dataclass(frozen=True)
class DerivedTensor:
    """A tensor to be computed when it is written: ``load`` returns an array of exactly ``dtype`` and ``shape``."""

    dtype: DType
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_derived(folder: Path, tensors: Mapping[str, DerivedTensor]) -> Mapping[str, TensorSlot]:
    """Write ``folder``/derived.safetensors (nothing if ``tensors`` is empty) and return where each tensor lies.

    ExportError: ``load`` returned another type or shape than declared. CheckpointError: a value is not finite.
    OSError: the disk is full or not writable.
    """
    if not tensors:
        return MappingProxyType({})
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DERIVED_FILE
    with path.open("xb") as file:
        file.write(_header(ordered))
        for name, tensor in ordered.items():
            file.write(_bytes(name, tensor))
    return read_safetensors(path).tensors


def _header(tensors: Mapping[str, DerivedTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(name: str, tensor: DerivedTensor) -> memoryview:
    array = tensor.load()
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise ExportError(
            f"derived tensor {name}: expected {tensor.dtype.value}{list(tensor.shape)}, "
            f"computed {array.dtype}{list(array.shape)}"
        )
    if tensor.dtype.is_floating and not np.isfinite(array).all():
        index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise CheckpointError(
            f"derived tensor {name}: expected finite values, found {float(array[tuple(index)])} at index {index}: "
            "the checkpoint is damaged or the type is too narrow (try --dtype float32)"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
