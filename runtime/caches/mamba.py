"""Recurrent and convolution states. A model without recurrent layers makes every operation a no-op."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.names import conv_state, recurrent_state
from hybridge.runtime.caches.part import CachePart
from hybridge.runtime.caches.snapshot import MambaSnapshot
from hybridge.runtime.engines.base import StateBuffer, StateSet


class MambaCacheManager(CachePart[MambaSnapshot]):
    """Recurrent and convolution state per recurrent layer, over the rows of one state set.

    The states start at zero. A layer may have only one of the two (a short convolution has no recurrent state).
    """

    def __init__(self, config: RuntimeConfig, states: StateSet, lengths: list[int]) -> None:
        self.num_layers = len(config.recurrent_layers)
        names = (name for r in range(self.num_layers) for name in (conv_state(r), recurrent_state(r)))
        declared = set(states.buffers)
        super().__init__(states, lengths, tuple(name for name in names if name in declared), MambaSnapshot)

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
        for row in range(self._states.batch) if chosen is None else chosen:
            self._lengths[row] = 0
