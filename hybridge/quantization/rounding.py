"""Round float32 weights to integers with a scale for each group of columns."""

from __future__ import annotations

import numpy as np

# Scales that are tried, in parts of the one that lets the largest weight of a group fit.
_PARTS = np.linspace(0.55, 1.05, 21, dtype=np.float32)


def rounded(weights: np.ndarray, bits: int, group: int, scale: np.dtype, search: bool) -> tuple[np.ndarray, np.ndarray]:
    """Integers [rows, columns] int8 and scales [rows, columns / group] of the type ``scale``; weights are close to
    their products.

    search: the scale of each group is the one of several that gives the least squared error; else the one that lets
    the largest weight fit. Weights must be finite. A group of zeros gets the scale 1.
    """
    groups = weights.reshape(len(weights), -1, group)
    half = float(1 << (bits - 1))
    # From -half to half - 1: a scale for half - 1/2 on both sides rounds the largest weight by at most half a step.
    peaks = np.abs(groups).max(2, keepdims=True) / np.float32(half - 0.5)
    peaks[peaks == 0] = 1
    scales = _stored(peaks, scale)
    found = _integers(groups, scales, half)
    if search:
        best = _error(groups, found, scales)
        for part in _PARTS:
            tried = _stored(peaks * part, scale)
            integers = _integers(groups, tried, half)
            error = _error(groups, integers, tried)
            better = error < best
            np.copyto(best, error, where=better)
            np.copyto(scales, tried, where=better)
            np.copyto(found, integers, where=better)
    return found.reshape(weights.shape).astype(np.int8), scales[:, :, 0].astype(scale)


def _stored(scales: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Scales as ``dtype`` holds them; none becomes 0."""
    import ml_dtypes

    least = ml_dtypes.finfo(dtype).smallest_normal
    return np.maximum(scales, np.float32(least)).astype(dtype).astype(np.float32)


def _integers(groups: np.ndarray, scales: np.ndarray, half: float) -> np.ndarray:
    found = groups / scales
    np.rint(found, out=found)
    return np.clip(found, -half, half - 1, out=found)


def _error(groups: np.ndarray, integers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Squared error of each group [rows, groups, 1]."""
    difference = integers * scales
    difference -= groups
    return np.einsum("rgc,rgc->rg", difference, difference)[:, :, None]
