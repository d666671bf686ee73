"""Unnormalised probabilities as integers: their sums are exact, so the order of summation cannot change a token.

Every operation is an IEEE 754 float32 operation with its own rounding. The CUDA kernels (plugin_src/sampling) do the
same, so they sample the same tokens from the same logits.
"""

from __future__ import annotations

import numpy as np

# The weight of the most likely token. With 2^19 tokens, sums are at most 2^59.
MOST_WEIGHT = 1 << 40
# Lower temperatures are effectively greedy and higher ones uniform; within the range the factors are finite in float32.
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-6, 1e30
# exp gives 0 from here down: the exponent bits of its power of two are 0.
_LEAST_EXPONENT = np.float32(-88.1)
_LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts: multiples of the first, up to 127 times, are exact.
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Numbers processed at a time, so that they stay in the processor's caches.
_CHUNK = 1 << 15
# Minimax fit of (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, highest power first; error in exp(r) below 1.1e-7.
_SERIES = tuple(np.float32(c) for c in (8.312501e-3, 4.1890331e-2, 1.6667116e-1, 4.9999231e-1))


def scale_of(temperature: float) -> np.float32:
    """The factor for differences of logits at a temperature above 0."""
    return np.float32(1 / min(max(temperature, _LEAST_TEMPERATURE), _MOST_TEMPERATURE))


def exponentials(scores: np.ndarray, peak: np.ndarray | np.float32, scale: np.ndarray | np.float32) -> np.ndarray:
    """exp((scores - peak) * scale) as float32 with a relative error of at most 3e-7, and 0 below 2^-126.5.

    ``scores`` [..., n] float32 hold no NaN and nothing above the finite ``peak``; ``peak`` and ``scale`` broadcast.
    """
    with np.errstate(over="ignore"):
        found = np.subtract(scores, peak, dtype=np.float32, order="C")
        found *= scale
    flat = found.reshape(-1)
    memory = np.empty((2, min(flat.size, _CHUNK)), np.float32)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        _exp_in_place(part, *memory[:, : part.size])
    return found


def _exp_in_place(x: np.ndarray, power: np.ndarray, product: np.ndarray) -> None:
    """``power``, ``product``: memory of the same size."""
    if x.size and x.min() < _LEAST_EXPONENT:  # np.maximum takes several times as long as other operations
        np.maximum(x, _LEAST_EXPONENT, out=x)
    np.rint(np.multiply(x, _LOG2_E, out=power), out=power)
    x -= np.multiply(power, _LN2_HIGH, out=product)
    x -= np.multiply(power, _LN2_LOW, out=product)
    # 2^power, made from its exponent bits.
    power += np.float32(127)
    scale = power.astype(np.int32)
    scale <<= 23
    square = np.multiply(x, x, out=power)
    found = np.multiply(x, _SERIES[0], out=product)
    found += _SERIES[1]
    for factor in _SERIES[2:]:
        found *= x
        found += factor
    found *= square
    x += found
    x += np.float32(1)
    x *= scale.view(np.float32)


def whole_weights(weights: np.ndarray) -> np.ndarray:
    """``weights`` float32 from 0 to 1 as int64 multiples of 1 / ``MOST_WEIGHT``, rounded half to even."""
    scaled = weights * np.float32(MOST_WEIGHT)
    return np.rint(scaled, out=scaled).astype(np.int64)


def block_sums(weights: np.ndarray, size: int) -> np.ndarray:
    """The sums int64 of ``whole_weights`` of each block of ``size``, at most 2^13, of ``weights`` [n]."""
    scaled = weights * np.float32(MOST_WEIGHT)
    np.rint(scaled, out=scaled)
    # float64 holds integers up to 2^53.
    return np.add.reduceat(scaled, np.arange(0, scaled.size, size), dtype=np.float64).astype(np.int64)


def target_of(word: int, total: int) -> int:
    """The integer in [0, total) that the random 64-bit ``word`` selects."""
    return (word * total) >> 64


def share_of(total: int, top_p: float) -> int:
    """The smallest sum of weights that reaches ``top_p`` of ``total``."""
    return min(max(int(np.ceil(np.float64(top_p) * np.float64(total))), 1), total)
