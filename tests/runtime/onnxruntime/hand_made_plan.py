"""Sizes and variants of the hand-made artifact."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.dtypes import DType

VOCAB, HIDDEN = 61, 24
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 10
M_HEADS, M_DIM, M_GROUPS, M_STATE, KERNEL = 6, 5, 3, 7, 4
INNER, CONV_DIM = M_HEADS * M_DIM, M_HEADS * M_DIM + 2 * M_GROUPS * M_STATE
EPS = 1e-5


@dataclass(frozen=True)
class Plan:
    """What one hand-made artifact consists of; layers are "m" (mamba) and "a" (attention)."""

    layers: str = "ma"
    dtype: DType = DType.FLOAT32
    weight_dtype: DType | None = None
    tied: bool = True
    all_logits: bool = False
    window: int | None = None
    max_seq_len: int = 600
    max_batch_size: int = 4
    activation: str = "silu"
    conv_bias: bool = True

    @property
    def stored(self) -> DType:
        return self.weight_dtype or self.dtype
