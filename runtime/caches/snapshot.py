"""The state of one row on the host, frozen, with the exact number of tokens that it has consumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hybridge.artifact.bindings import MAX_SEQ
from hybridge.artifact.errors import RequestError
from hybridge.runtime.engines.base import StateSet


@dataclass(frozen=True)
class PartSnapshot:
    """Read-only arrays by state name; ``length`` is the number of tokens consumed, never more, never less."""

    length: int
    states: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Host memory that the arrays take, in bytes."""
        return sum(array.nbytes for array in self.states.values())


@dataclass(frozen=True)
class KVSnapshot(PartSnapshot):
    """Keys and values of one row: per name [kv_heads, length, head_dim]."""


@dataclass(frozen=True)
class MambaSnapshot(PartSnapshot):
    """Convolution states [conv_dim, conv_kernel] and recurrent states [heads, head_dim, state] of one row."""


@dataclass(frozen=True)
class RowSnapshot:
    """The whole state of one row after exactly ``length`` tokens."""

    length: int
    kv: KVSnapshot
    mamba: MambaSnapshot

    @property
    def nbytes(self) -> int:
        """Host memory that the snapshot takes, in bytes."""
        return self.kv.nbytes + self.mamba.nbytes


def read_states(states: StateSet, names: tuple[str, ...], row: int, length: int) -> Mapping[str, np.ndarray]:
    """Frozen copies of the named states of ``row``, caches cut to their first ``length`` positions."""
    buffers, arrays = states.buffers, {}
    for name in names:
        arrays[name] = buffers[name].read_row(row, length)
        arrays[name].setflags(write=False)
    return MappingProxyType(arrays)


def check_fit(states: StateSet, names: tuple[str, ...], snapshot: PartSnapshot) -> None:
    """Raise RequestError when ``snapshot`` does not fit the named states: it is of another model or engine."""
    if set(snapshot.states) != set(names):
        raise RequestError(
            f"expected a snapshot of {len(names)} states, found {len(snapshot.states)}: it belongs to another model"
        )
    for name in names:
        spec, array = states.buffers[name].spec, snapshot.states[name]
        shape = spec.resolve(batch=1, **{MAX_SEQ: snapshot.length})[1:]
        if array.dtype != spec.dtype.numpy or array.shape != shape:
            raise RequestError(
                f"{name}: expected a snapshot of {spec.dtype.value}{list(shape)}, found {array.dtype}"
                f"{list(array.shape)}: it belongs to another model or engine"
            )


def write_states(states: StateSet, row: int, snapshot: PartSnapshot) -> None:
    """Put the arrays of ``snapshot``, which fits, into ``row``."""
    buffers = states.buffers
    for name, array in snapshot.states.items():
        if array.size:
            buffers[name].write_row(row, array)
