"""derived.safetensors: the few tensors of an artifact that are not in the checkpoint as they are needed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from artifact.dtypes import DType
from artifact.errors import CheckpointError
from artifact.safetensors_file import TensorSlot, read_safetensors
from exporter.weights.placing import DERIVED_FILE, WEIGHTS_FOLDER

# The data section starts at a multiple of this, and wider elements come first: every tensor is aligned to its own.
ALIGNMENT = 64


def write_derived(folder: Path, tensors: Mapping[str, np.ndarray]) -> Mapping[str, TensorSlot]:
    """Write ``tensors`` to ``folder``/weights/derived.safetensors and return their slots.

    CheckpointError: a value is not finite. OSError: the disk is full or not writable.
    """
    for name, value in tensors.items():
        _check_finite(name, value)
    path = folder / WEIGHTS_FOLDER / DERIVED_FILE
    path.parent.mkdir(exist_ok=True)
    header: dict[str, object] = {}
    position = 0
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])))
    for name, value in ordered.items():
        dtype = DType.from_numpy(value.dtype).safetensors
        end = position + value.nbytes
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for value in ordered.values():
            file.write(np.ascontiguousarray(value).tobytes())
    return read_safetensors(path).tensors


def _check_finite(name: str, value: np.ndarray) -> None:
    finite = np.isfinite(value)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise CheckpointError(
            f"the tensor {name}, computed from the checkpoint, holds {value[index]} at index {list(index)}: "
            "expected finite values: the checkpoint is damaged"
        )
