"""Hidden states for verifying a prediction head: numbers computed from a token and its position.

So they depend neither on how a prompt is cut into steps nor on how exactly an engine computes the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.config import RuntimeConfig

# A prime, so that the states of neighbouring tokens differ.
_COUNT = 61
# One token in this many continues from the head's own hidden states.
_OWN = 3


@dataclass(frozen=True, eq=False)
class HeadStates:
    """``table`` [n, hidden] float32, of numbers that the artifact's type can hold."""

    table: np.ndarray

    @classmethod
    def random(cls, config: RuntimeConfig, seed: int) -> HeadStates:
        """Normally distributed states for the head with ``config``."""
        table = np.random.default_rng(seed).standard_normal((_COUNT, config.hidden_size), np.float32)
        return cls(table.astype(config.dtype.numpy).astype(np.float32))

    def rows(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The row of ``table`` of each token [n] int64."""
        return (7 * ids.astype(np.int64) + 3 * positions) % len(self.table)

    def is_own(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Whether each state is the head's own and not the model's [n] int32."""
        return ((ids.astype(np.int64) + positions) % _OWN == 0).astype(np.int32)
