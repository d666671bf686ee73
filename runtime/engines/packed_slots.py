"""Slots of states in 8 bits in NumPy memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hybridge.artifact.bindings import NUM_SLOTS, Binding
from hybridge.runtime.engines.packed_rows import TYPES, PackedRows, packed_rows
from hybridge.runtime.engines.packed_state import PackedState, is_packable
from hybridge.runtime.engines.pool_sizes import PoolSizes


class PackedSlots:
    """``sizes.num_packed`` slots of the states of ``specs``, in the layouts of their declarations.

    packed: recurrent states by pool name, rows [slots, ...]. exact: the other states, [slots, ...].
    """

    def __init__(self, specs: Iterable[Binding], sizes: PoolSizes) -> None:
        """Zeroed; MemoryError when there is too little."""
        self._kind = sizes.packed
        self.packed: dict[str, PackedRows] = {}
        self.exact: dict[str, np.ndarray] = {}
        for spec in specs if sizes.num_packed else ():
            if spec.grows:
                continue
            shape, dtype = spec.resolve(**{NUM_SLOTS: sizes.num_packed}), spec.dtype.numpy
            if is_packable(spec.name, dtype):
                values, factors = np.zeros(shape, TYPES[self._kind]), np.zeros(shape[:-1], np.float32)
                self.packed[spec.name] = PackedRows(values, factors, dtype)
            else:
                self.exact[spec.name] = np.zeros(shape, dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """The pools whose states are kept."""
        return (*self.packed, *self.exact)

    def write(self, name: str, states: np.ndarray, slots: Sequence[int]) -> None:
        """Keep ``states`` [count, ...] of one pool in as many slots."""
        if name in self.exact:
            self.exact[name][list(slots)] = states
            return
        rows, pool = packed_rows(states, self._kind), self.packed[name]
        pool.values[list(slots)], pool.factors[list(slots)] = rows.values, rows.factors

    def read(self, name: str, slots: Sequence[int]) -> np.ndarray:
        """The stored part of one pool, [count, ...] in its own type."""
        return self.exact[name][list(slots)] if name in self.exact else self._rows(name, slots).unpacked()

    def copy_out(self, slot: int) -> PackedState:
        """A copy of one slot as it is."""
        return PackedState(
            {name: self._rows(name, [slot]) for name in self.packed},
            {name: array[[slot]] for name, array in self.exact.items()},
        )

    def copy_in(self, state: PackedState, slot: int) -> None:
        """Write ``state``, of the same kind, to ``slot``."""
        for name, array in self.exact.items():
            array[slot] = state.exact[name][0]
        for name, pool in self.packed.items():
            pool.values[slot], pool.factors[slot] = state.packed[name].values[0], state.packed[name].factors[0]

    def _rows(self, name: str, slots: Sequence[int]) -> PackedRows:
        pool = self.packed[name]
        return PackedRows(pool.values[list(slots)], pool.factors[list(slots)], pool.dtype)
