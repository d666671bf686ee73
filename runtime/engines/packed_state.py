"""States of sequences in 8 bits: recurrent states as packed rows, except for those that an artifact has in 8 bits;
convolution states, which are small, unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.names import is_recurrent_state
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_rows import PackedRows, packed_rows


class PackedState(HostCopy):
    """The state of one slot in host memory.

    packed: recurrent states by pool name, as rows [1, ...]. exact: the other arrays, as
    ``PagedEngine.arrays_from_copy`` gives them.
    """

    blocks, slots = 0, 1

    def __init__(self, packed: Mapping[str, PackedRows], exact: Mapping[str, np.ndarray]) -> None:
        self.packed, self.exact = packed, exact

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], kind: str) -> PackedState:
        """``arrays``: one slot and no block. kind: "int8" or "fp8"."""
        packable = {name: array for name, array in arrays.items() if is_packable(name, array.dtype)}
        recurrent = {name: packed_rows(array, kind) for name, array in packable.items()}
        return cls(recurrent, {name: array for name, array in arrays.items() if name not in recurrent})

    @property
    def nbytes(self) -> int:
        exact = sum(array.nbytes for array in self.exact.values())
        return exact + sum(rows.nbytes for rows in self.packed.values())

    def arrays(self) -> dict[str, np.ndarray]:
        """The unpacked state, in its original types."""
        return {**self.exact, **{name: rows.unpacked() for name, rows in self.packed.items()}}


def is_packable(name: str, dtype: np.dtype) -> bool:
    """Whether packing stores the state ``name`` of type ``dtype`` in 8 bits: a recurrent state of more bits."""
    return is_recurrent_state(name) and dtype.itemsize > 1


def packed_bytes(spec: Binding) -> int:
    """Bytes of one packed slot of a state pool."""
    if not is_packable(spec.name, spec.dtype.numpy):
        return spec.unit_bytes
    *rows, width = (n for n in spec.shape if isinstance(n, int))
    return prod(rows) * (width + np.dtype(np.float32).itemsize)
