"""What the managers of KV caches and of recurrent states have in common: whole rows of named states."""

from __future__ import annotations

from typing import Generic, TypeVar

from hybridge.runtime.caches.snapshot import PartSnapshot, check_fit, read_states, write_states
from hybridge.runtime.engines.base import StateSet

SnapshotT = TypeVar("SnapshotT", bound=PartSnapshot)


class CachePart(Generic[SnapshotT]):
    """The states ``names`` of a state set, row by row. Without names, every operation only minds the lengths.

    ``lengths`` counts the tokens that each row has consumed. The parts of one set share it, as plain integers: every
    decode step reads and writes it, for which NumPy's scalars are slow.
    """

    def __init__(
        self, states: StateSet, lengths: list[int], names: tuple[str, ...], snapshot_type: type[SnapshotT]
    ) -> None:
        self._states, self._lengths, self._names = states, lengths, names
        self._snapshot_type = snapshot_type

    def capture(self, row: int) -> SnapshotT:
        """A frozen copy of the states of ``row``, which have consumed exactly ``length`` tokens."""
        length = self._lengths[row]
        return self._snapshot_type(length, read_states(self._states, self._names, row, length))

    def check_fit(self, snapshot: SnapshotT) -> None:
        """Raise RequestError when ``snapshot`` is of another model or engine."""
        check_fit(self._states, self._names, snapshot)

    def restore(self, row: int, snapshot: SnapshotT) -> None:
        """Put ``snapshot`` into ``row``; RequestError if it does not fit."""
        self.check_fit(snapshot)
        write_states(self._states, row, snapshot)
        self._lengths[row] = snapshot.length

    def copy_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target``."""
        buffers = self._states.buffers
        for name in self._names:
            buffers[name].copy_row(source, target)
        self._lengths[target] = self._lengths[source]
