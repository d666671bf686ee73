"""States of sequences in 8 bits: recurrent states as packed rows; convolution states, which are small, unchanged."""

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
        recurrent = {name: packed_rows(array, kind) for name, array in arrays.items() if is_recurrent_state(name)}
        return cls(recurrent, {name: array for name, array in arrays.items() if name not in recurrent})

    @property
    def nbytes(self) -> int:
        exact = sum(array.nbytes for array in self.exact.values())
        return exact + sum(rows.nbytes for rows in self.packed.values())

    def arrays(self) -> dict[str, np.ndarray]:
        """The unpacked state, in its original types."""
        return {**self.exact, **{name: rows.unpacked() for name, rows in self.packed.items()}}


def packed_bytes(spec: Binding) -> int:
    """Bytes of one packed slot of a state pool."""
    if not is_recurrent_state(spec.name):
        return spec.unit_bytes
    *rows, width = (n for n in spec.shape if isinstance(n, int))
    return prod(rows) * (width + np.dtype(np.float32).itemsize)
