"""Recurrent states with rings: which tensors hold the last tokens of a row, and the state after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import GATED_DELTA_NET
from hybridge.artifact.names import present, recurrent_state, state_ring
from hybridge.artifact.state_dtypes import has_state_scales

RING_TOKENS = 16
"""Tokens per write of a state; a ring holds at most one fewer."""
RING_PREFIX, RING_LENGTHS = "ring_", "ring_lengths"
"""Inputs of operators: the tensors of a ring, and the number of tokens in it."""
_LENGTHS = RING_LENGTHS.removeprefix(RING_PREFIX)


@dataclass(frozen=True)
class StateRing:
    """The ring of recurrent layer ``r`` (local index): by tensor its type and shape for one row.

    The last tensor is the ring's length. is_delta: of a gated delta rule, else of Mamba2's recurrence.
    """

    r: int
    tensors: Mapping[str, tuple[DType, tuple[int, ...]]]
    is_delta: bool

    @classmethod
    def of(cls, r: int, layer: RecurrentLayerConfig, kind: str, dtype: DType) -> StateRing:
        """That of a ``layer`` of type ``kind`` with a ring, in a model that computes in ``dtype``."""
        shared, heads = (layer.ring_heads, RING_TOKENS), (layer.num_heads, RING_TOKENS)
        wide = DType.FLOAT32
        tensors: dict[str, tuple[DType, tuple[int, ...]]] = {
            "x": (dtype, (*heads, layer.head_dim)),
            "B": (dtype, (*shared, layer.state_size)),
            "steps": (wide, (*heads, 2)),
        }
        if kind == GATED_DELTA_NET:
            tensors = {
                "k": (dtype, (*shared, layer.head_dim)),
                "written": (wide, (*heads, layer.state_size)),
                "decays": (wide, (*heads, layer.ring_decays)),
            }
        return cls(r, {**tensors, _LENGTHS: (DType.INT32, (1,))}, kind == GATED_DELTA_NET)

    @property
    def state(self) -> str:
        """The name of the recurrent state."""
        return recurrent_state(self.r)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors as states of a graph."""
        return tuple(state_ring(self.r, tensor) for tensor in self.tensors)

    def bindings(self, rows: str) -> tuple[Binding, ...]:
        """The tensors of ``rows`` rows or slots as states of a graph."""
        found = zip(self.names, self.tensors.values(), strict=True)
        return tuple(Binding(name, dtype, (rows, *shape), present(name)) for name, (dtype, shape) in found)

    def flushed(self, state: np.ndarray, ring: Mapping[str, np.ndarray]) -> np.ndarray:
        """The state [heads, a, b] of one row after the tokens in its ``ring``, by name; float32."""
        first, second, third, length = (ring[name].astype(np.float64) for name in self.names)
        count = int(np.clip(length[0], 0, RING_TOKENS - 1))
        found = state.astype(np.float64)
        for token in range(count):
            left, right, log_decay = (
                tensor[:, token] for tensor in self._outer_product(first, second, third, len(found))
            )
            found = np.exp(log_decay)[:, :, None] * found + left[:, :, None] * right[:, None, :]
        return found.astype(np.float32)

    def _outer_product(
        self, first: np.ndarray, second: np.ndarray, third: np.ndarray, heads: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By head and token: the two vectors whose outer product the token adds, and its log decays."""
        if self.is_delta:
            return np.repeat(first, heads // len(first), axis=0), second, third
        log_decay, step = np.split(third, 2, axis=-1)
        return first * step, np.repeat(second, heads // len(second), axis=0), log_decay


def check_state_rings(
    layers: Sequence[RecurrentLayerConfig],
    state_dtype: DType,
    rings: Sequence[StateRing],
    bindings: GraphBindings,
    rows: str,
) -> None:
    """ArtifactError unless the ``rings`` of ``layers`` have possible sizes and are among the states of a graph."""
    for layer in layers:
        heads, decays = layer.ring_heads, layer.ring_decays
        if heads and (layer.num_heads % heads or not layer.num_heads or has_state_scales(state_dtype)):
            raise ArtifactError(
                f"config.json: recurrent_state_ring_heads: expected 0, or a divisor of {layer.num_heads} heads whose "
                f"states have 16 or 32 bits, found {heads}: export the checkpoint again"
            )
        if decays not in ((1, layer.head_dim) if heads else (0,)):
            raise ArtifactError(
                f"config.json: recurrent_state_ring_decays: expected 1 or {layer.head_dim} for a layer with a ring, 0 "
                f"for others, found {decays}: export the checkpoint again"
            )
    states = {binding.name: binding for binding in bindings.states}
    for ring in rings:
        for expected in ring.bindings(rows):
            if states.get(expected.name) != expected:
                raise ArtifactError(
                    f"config.json: bindings: expected the state {expected.name} {expected.dtype.value}"
                    f"{list(expected.shape)} beside {ring.state}, found none or another: export the checkpoint again"
                )
