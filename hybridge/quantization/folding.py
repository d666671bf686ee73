"""Scales of inputs folded into the tensors around them."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import float32_vector
from hybridge.quantization.input_scaling import ScalableInput
from hybridge.quantization.scaled import TensorScale


def storable_scales(group: ScalableInput, producer: TensorSlot, scales: np.ndarray) -> np.ndarray:
    """``scales`` [rows of the producer], changed so that its divided entries can be stored in its type.

    A matrix stays as it is: it is quantised. Entries that cannot be divided get the scale 1.
    """
    if len(producer.shape) != 1:
        return scales
    entries = float32_vector(producer).astype(np.float64) + group.offset
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        stored = (entries / scales - group.offset).astype(producer.dtype.numpy).astype(np.float64) + group.offset
        actual = entries / stored
        usable = np.isfinite(actual) & (np.abs(actual / scales - 1) < 0.1)
    return np.where(usable, actual, 1.0)


def folded(group: ScalableInput, scales: np.ndarray) -> dict[str, TensorScale]:
    """The scale of each tensor around the input ``group`` whose features get ``scales`` [rows of the producer]; rows
    that are no features (the gate of a matrix that holds both) stay as they are.
    """
    scales = np.where(np.isin(np.arange(len(scales)), group.positions), scales, 1.0)
    rows = 1 / (scales if group.power == 1 else scales ** (1 / group.power))
    found = {group.producer: TensorScale(rows=rows, offset=group.offset)}
    if group.bias is not None:
        found[group.bias] = TensorScale(rows=rows)
    columns = TensorScale(columns=scales[group.positions])
    return found | {name: columns for name in group.consumers}


def merged(scales: dict[str, TensorScale], more: dict[str, TensorScale]) -> dict[str, TensorScale]:
    """Both scales together: a matrix may produce one input and read another."""
    both = {name: scales[name].with_scale(more[name]) for name in scales.keys() & more.keys()}
    return scales | more | both
