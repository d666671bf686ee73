"""Weights that no calibration can run with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.progress import Progress
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import peak_of


def check_weights(tensors: Mapping[str, TensorSlot], modules: Collection[str], progress: Progress) -> None:
    """CheckpointError names a tensor that is not finite, or the weight of one of ``modules`` that holds only zeros."""
    floating = [slot for slot in tensors.values() if slot.dtype.is_floating]
    progress.start("check weights", sum(slot.nbytes for slot in floating), "B")
    for slot in floating:
        peak = peak_of(_as_matrix(slot))
        if peak == 0 and slot.name.removesuffix(".weight") in modules:
            raise CheckpointError(
                f"{slot.path}: tensor {slot.name} holds only zeros: expected weights for a calibration: the checkpoint "
                "is damaged, or choose the method mse"
            )
        progress.advance(slot.nbytes)


def _as_matrix(slot: TensorSlot) -> TensorSlot:
    columns = slot.shape[-1] if slot.shape else 1
    rows = int(np.prod(slot.shape[:-1], dtype=np.int64))
    return replace(slot, shape=(rows, columns))
