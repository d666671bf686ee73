"""The tensors of a checkpoint while the readers of quantised formats take theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot

SCALE_TYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


class StoredTensors:
    """Tensors by name. ``left`` are those that no reader has taken yet.

    names: the checkpoint's names, for errors, where they differ.
    """

    def __init__(self, tensors: Mapping[str, TensorSlot], names: Mapping[str, str] | None = None) -> None:
        self._all, self._names = tensors, names or {}
        self.left = dict(tensors)

    def modules(self, suffix: str) -> list[str]:
        """The modules that have a tensor of the name ``suffix``, sorted."""
        return sorted(name.removesuffix(f".{suffix}") for name in self.left if name.endswith(f".{suffix}"))

    @property
    def all_modules(self) -> frozenset[str]:
        """Names of all modules with tensors, and of the modules that these are in."""
        found: set[str] = set()
        for name in self._all:
            while "." in name:
                name = name.rpartition(".")[0]
                if name in found:
                    break
                found.add(name)
        return frozenset(found)

    def take(self, name: str, *dtypes: DType, shape: tuple[int, ...] | None = None) -> TensorSlot:
        """The tensor ``name``, which is then taken; CheckpointError when it is missing, or of another type or shape."""
        slot = self.optional(name, *dtypes, shape=shape)
        if slot is None:
            of = "" if shape is None else f" {list(shape)}"
            known = self._names.get(name, name)
            raise CheckpointError(f"expected the tensor {known}{of}, found none: the checkpoint is incomplete")
        return slot

    def optional(self, name: str, *dtypes: DType, shape: tuple[int, ...] | None = None) -> TensorSlot | None:
        """The same, or None where there is none."""
        slot = self.left.pop(name, None)
        if slot is None:
            return None
        if slot.dtype not in dtypes:
            known = " or ".join(dtype.value for dtype in dtypes)
            raise CheckpointError(f"{slot.name}: expected {known}, found {slot.dtype.value}: the checkpoint is damaged")
        if shape is not None and slot.shape != shape:
            raise CheckpointError(
                f"{slot.name}: expected shape {list(shape)} by the quantisation config, found {list(slot.shape)}"
            )
        return slot

    def shape_of(self, name: str) -> tuple[int, int]:
        """The shape of a matrix that is not taken yet; CheckpointError when there is none."""
        if name not in self.left:
            raise CheckpointError(f"expected the tensor {name}, found none: the checkpoint is incomplete")
        return matrix_shape(self.left[name])

    def drop_of(self, module: str, *suffixes: str) -> None:
        """Take the tensors of ``module`` of these names, of which nothing is used."""
        for suffix in suffixes:
            self.left.pop(f"{module}.{suffix}", None)

    def integers(self, name: str, count: int) -> np.ndarray:
        """The ``count`` values of a vector of integers."""
        return np.array(self.take(name, DType.INT64, DType.INT32, shape=(count,)).map(), np.int64)


def matrix_shape(slot: TensorSlot) -> tuple[int, int]:
    """The shape of a matrix; CheckpointError for other tensors."""
    if len(slot.shape) != 2 or 0 in slot.shape:
        raise CheckpointError(f"{slot.name}: expected a matrix, found shape {list(slot.shape)}")
    return slot.shape[0], slot.shape[1]


def check_groups(name: str, columns: int, group: int) -> int:
    """The number of groups of a row; CheckpointError unless ``group`` divides ``columns``."""
    if columns % group:
        raise CheckpointError(f"{name}: expected a group size that divides its {columns} columns, found {group}")
    return columns // group
