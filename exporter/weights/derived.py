"""derived.safetensors: the few tensors of an artifact that are not in the checkpoint as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot, read_safetensors
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.weights.placing import DERIVED_FILE, WEIGHTS_FOLDER


@dataclass(frozen=True)
class DerivedTensor:
    """``pieces`` gives the tensor in parts, one after another, so that no more than one is in memory."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, value: np.ndarray) -> DerivedTensor:
        """A tensor that is in memory."""
        return cls(DType.from_numpy(value.dtype), value.shape, lambda: (value,))


def write_derived(folder: Path, tensors: Mapping[str, DerivedTensor]) -> Mapping[str, TensorSlot]:
    """Write ``tensors`` to ``folder``/weights/derived.safetensors and return their slots.

    CheckpointError: a value is not finite. OSError: the disk is full or not writable.
    """
    for name, value in tensors.items():
        for piece in value.pieces():
            _check_finite(name, piece)
    path = folder / WEIGHTS_FOLDER / DERIVED_FILE
    path.parent.mkdir(exist_ok=True)
    # Wider elements come first: every tensor is aligned to its own.
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header = safetensors_header({name: (v.dtype, v.shape) for name, v in ordered.items()})
    with path.open("xb") as file:
        file.write(header)
        for value in ordered.values():
            for piece in value.pieces():
                file.write(np.ascontiguousarray(piece).tobytes())
    return read_safetensors(path).tensors


def _check_finite(name: str, value: np.ndarray) -> None:
    finite = np.isfinite(value)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise CheckpointError(
            f"the tensor {name}, computed from the checkpoint, holds {value[index]} at index {list(index)}: "
            "expected finite values: the checkpoint is damaged"
        )
