"""Experts whose rows a checkpoint stores in another order than the graph reads them (gpt-oss). No torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot

# Types of quantised weights.
QUANTIZED_TYPES = (DType.INT4, DType.INT8, DType.FLOAT8E4M3FN, DType.FLOAT4E2M1)
COLUMNS, TURNS, COLUMNS_IN_TURNS, SEPARATE = "columns", "turns", "columns_in_turns", "separate"
FORMS = (COLUMNS, TURNS, COLUMNS_IN_TURNS, SEPARATE)
"""How the rows are stored: on the last axis; those of a gate and of what it gates in turns; both; biases in tensors of
their own."""


def is_quantized(slot: object) -> bool:
    """Whether ``slot`` is a tensor of quantised numbers."""
    return isinstance(slot, TensorSlot) and slot.dtype in QUANTIZED_TYPES


def stored_shape(form: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the checkpoint's tensor for a parameter of ``shape``."""
    return shape if form not in (COLUMNS, COLUMNS_IN_TURNS) else (shape[0], shape[2], shape[1])


def experts_in_order(form: str, slot: TensorSlot) -> Iterator[np.ndarray]:
    """Each expert's rows [rows, columns], or their bias [rows], the gate's first; of the stored type."""
    for stored in slot.map():
        rows = stored if form == TURNS else stored.T
        yield rows if form == COLUMNS else np.concatenate([rows[0::2], rows[1::2]])
