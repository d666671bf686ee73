"""Scales of quantised weights: a zero, an infinity or a NaN makes a whole group of weights meaningless."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor, row_ranges

_E4M3_NAN = 0x7F
_EXPONENT_NAN = 255


def check_scales(weights: Iterable[QuantizedTensor], cancelled: threading.Event) -> None:
    """CheckpointError naming the first scale that is 0 or not finite; ends early once ``cancelled`` is set."""
    for weight in weights:
        for slot in weight.sources:
            if cancelled.is_set():
                return
            if slot.dtype.is_floating:
                _check(slot, zero_is_bad=True)
            elif slot.dtype is DType.FLOAT8E4M3FN:
                _check(slot, zero_is_bad=slot is not weight.sources[0])
            elif slot.dtype is DType.UINT8 and weight.values.dtype is DType.FLOAT4E2M1 and weight.global_scale is None:
                _check_exponents(slot, weight)


def _check_exponents(slot: TensorSlot, weight: QuantizedTensor) -> None:
    """CheckpointError for an mxfp4 scale with the exponent 255, which is a NaN."""
    if slot is weight.sources[0]:
        return
    if bool((slot.map() == _EXPONENT_NAN).any()):
        raise CheckpointError(f"{slot.path}: tensor {slot.name}: expected finite scales, found NaN: fetch it again")


def _check(slot: TensorSlot, zero_is_bad: bool) -> None:
    flat = slot.map().reshape(-1)
    for part in row_ranges(len(flat), flat.itemsize):
        values = flat[part]
        if slot.dtype is DType.FLOAT8E4M3FN:
            sizes = values.view(np.uint8) & _E4M3_NAN
            bad = sizes == _E4M3_NAN
            if zero_is_bad:
                bad |= sizes == 0
        else:
            bad = ~np.isfinite(values) | (values == 0)
        if bad.any():
            place = int(np.argmax(bad))
            index = [int(i) for i in np.unravel_index(part.start + place, slot.shape)] if slot.shape else []
            expected = "finite scales other than 0" if zero_is_bad else "finite numbers"
            raise CheckpointError(
                f"{slot.path}: tensor {slot.name} holds {float(values[place])} at index {index}: expected {expected}: "
                "the checkpoint is damaged"
            )
