"""Unnormalised probabilities as whole numbers: their sums are exact, so that the order of summing changes no token.

Every operation is one of IEEE 754 in float32, rounded each time. The CUDA kernels (plugin_src/sampling) do the same,
and so draw the same tokens from the same logits.
"""

from __future__ import annotations

import numpy as np

# The weight of the most likely token. With 2^19 tokens, sums stay below 2^59.
MOST_WEIGHT = 1 << 40
# Smaller temperatures are effectively greedy, and larger ones level; the factors stay finite in float32.
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-6, 1e30
# exp of this is 0, as its power of two has no bits.
_LEAST_EXPONENT = np.float32(-88.1)
_LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts: multiples of the first, up to 127, are exact.
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Numbers worked on together: they stay in the processor's caches.
_CHUNK = 1 << 14
# exp(r) - 1 - r over r * r for |r| <= ln(2) / 2, highest power first, within 1.1e-7 of exp(r) by a minimax fit.
_SERIES = tuple(np.float32(c) for c in (8.312501e-3, 4.1890331e-2, 1.6667116e-1, 4.9999231e-1))


def scale_of(temperature: float) -> np.float32:
    """What differences of logits are multiplied by, of a temperature above 0."""
    return np.float32(1 / min(max(temperature, _LEAST_TEMPERATURE), _MOST_TEMPERATURE))


def exponentials(scores: np.ndarray, peak: np.ndarray | np.float32, scale: np.ndarray | np.float32) -> np.ndarray:
    """exp((scores - peak) * scale) float32, within 3e-7 of each, and 0 below 2^-126.5.

    ``scores`` [..., n] float32 hold no NaN and nothing above ``peak``, which is finite; it and ``scale`` broadcast.
    """
    with np.errstate(over="ignore"):
        found = np.subtract(scores, peak, dtype=np.float32, order="C")
        found *= scale
    flat = found.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        _exp_in_place(flat[begin : begin + _CHUNK])
    return found


def _exp_in_place(x: np.ndarray) -> None:
    np.maximum(x, _LEAST_EXPONENT, out=x)
    power = np.rint(x * _LOG2_E)
    product = power * _LN2_HIGH
    x -= product
    x -= np.multiply(power, _LN2_LOW, out=product)
    square = np.multiply(x, x, out=product)
    found = x * _SERIES[0]
    found += _SERIES[1]
    for factor in _SERIES[2:]:
        found *= x
        found += factor
    found *= square
    x += found
    x += np.float32(1)
    # A power of two by its bits.
    power += np.float32(127)
    scale = power.astype(np.int32)
    scale <<= 23
    x *= scale.view(np.float32)


def whole_weights(weights: np.ndarray) -> np.ndarray:
    """``weights`` float32 from 0 to 1 as int64, of which 1 is ``MOST_WEIGHT``, rounded half to even."""
    scaled = weights * np.float32(MOST_WEIGHT)
    return np.rint(scaled, out=scaled).astype(np.int64)


def target_of(word: int, total: int) -> int:
    """The whole number below ``total`` that random ``word`` (64 bits) chooses."""
    return (word * total) >> 64


def share_of(total: int, top_p: float) -> int:
    """The least sum of weights that counts as ``top_p`` of ``total``."""
    return min(max(int(np.ceil(np.float64(top_p) * np.float64(total))), 1), total)
