"""Recurrent states in 8 bits: which tensor holds the scales of which, and of which rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import floats_from_e4m3
from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import GATED_DELTA_NET
from hybridge.artifact.names import recurrent_state, state_scales


@dataclass(frozen=True)
class StateScales:
    """The state ``name`` of type ``dtype`` and its ``scales``, float32 ``scale_shape`` for each row of a batch or slot.

    axis: that of the state, from its end, over which readers sum; numbers along it share a scale.
    """

    name: str
    scales: str
    dtype: DType
    axis: int
    scale_shape: tuple[int, ...]

    @classmethod
    def of(cls, r: int, layer: RecurrentLayerConfig, kind: str, dtype: DType) -> StateScales:
        """Those of recurrent layer ``r`` (local index), a layer of type ``kind``."""
        # [heads, keys, values] of a gated delta net is summed over its keys, [heads, head_dim, state] over the last.
        axis = -2 if kind == GATED_DELTA_NET else -1
        sizes = [layer.num_heads, layer.head_dim, layer.state_size]
        del sizes[axis]
        return cls(recurrent_state(r), state_scales(r), dtype, axis, tuple(sizes))

    def exact(self, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """The float32 numbers of a stored state [..., heads, a, b] with its ``scales``."""
        numbers = values.astype(np.float32) if self.dtype is DType.INT8 else floats_from_e4m3(values)
        return numbers * np.expand_dims(scales, self.axis)
