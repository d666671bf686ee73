"""Recurrent and convolution states. A model without recurrent layers makes every operation a no-op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from artifact.config import RuntimeConfig
from artifact.names import conv_state, recurrent_state
from runtime.caches.snapshot import MambaSnapshot, check_fit, read_states, write_states
from runtime.engines.base import StateBuffer, StateSet


class MambaCacheManager:
    """Recurrent and convolution state per recurrent layer, over the rows of one state set.

    The states start at zero. A layer may have only one of the two (a short convolution has no recurrent state).
    ``lengths`` [rows] int32 counts the tokens that each row has consumed and is shared with the other managers.
    """

    def __init__(self, config: RuntimeConfig, states: StateSet, lengths: np.ndarray) -> None:
        self._states = states
        self._lengths = lengths
        self.num_layers = len(config.recurrent_layers)
        declared = set(states.buffers)
        self._names = tuple(
            name for r in range(self.num_layers) for name in (conv_state(r), recurrent_state(r)) if name in declared
        )

    def conv_state(self, layer: int) -> StateBuffer | None:
        """Convolution state [rows, conv_dim, conv_kernel] of the local ``layer``; valid until the next step."""
        return self._states.buffers.get(conv_state(layer))

    def recurrent_state(self, layer: int) -> StateBuffer | None:
        """Recurrent state [rows, heads, head_dim, state] of the local ``layer``; valid until the next step."""
        return self._states.buffers.get(recurrent_state(layer))

    def clear_states(self, rows: Sequence[int] | None = None) -> None:
        """Zero the states of ``rows`` (all by default), so that the next token is their first."""
        chosen = None if rows is None else list(rows)
        buffers = self._states.buffers
        for name in self._names:
            buffers[name].zero_rows(chosen)
        self._lengths[slice(None) if chosen is None else chosen] = 0

    def capture(self, row: int) -> MambaSnapshot:
        """A frozen copy of the states of ``row``, which have consumed exactly ``length`` tokens."""
        length = int(self._lengths[row])
        return MambaSnapshot(length, read_states(self._states, self._names, row, length))

    def check_fit(self, snapshot: MambaSnapshot) -> None:
        """Raise RequestError when ``snapshot`` is of another model or engine."""
        check_fit(self._states, self._names, snapshot)

    def restore(self, row: int, snapshot: MambaSnapshot) -> None:
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
