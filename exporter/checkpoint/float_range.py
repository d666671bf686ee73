"""Where a stored floating-point value stops being representable in the compute type, as bit patterns.

Without its sign bit, a floating-point number read as an unsigned integer orders like its magnitude; infinity comes
after every finite value and NaN after infinity. So one comparison of integers predicts the result of a cast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.dtypes import DType


@dataclass(frozen=True)
class FloatRange:
    """Patterns without sign of a stored type: below ``first_bad`` a value stays finite in the compute type, from
    ``first_nonzero`` on it does not become zero (1: no value but zero does). ``mask`` removes the sign.
    """

    unsigned: np.dtype
    signed: np.dtype
    mask: np.unsignedinteger
    first_bad: int
    first_nonzero: int


@functools.cache
def float_range(stored: DType, compute: DType) -> FloatRange:
    """The limits of a round-to-nearest cast from ``stored`` to ``compute``, found by bisecting the cast itself."""
    unsigned = np.dtype(f"u{stored.itemsize}")
    infinity = int(np.array(np.inf, stored.numpy).view(unsigned))

    def cast(pattern: int) -> np.ndarray:
        with np.errstate(over="ignore", under="ignore"):
            return np.array(pattern, unsigned).view(stored.numpy).astype(compute.numpy)

    return FloatRange(
        unsigned=unsigned,
        signed=np.dtype(f"i{stored.itemsize}"),
        mask=unsigned.type((1 << (8 * stored.itemsize - 1)) - 1),
        first_bad=_first(1, infinity, lambda pattern: not np.isfinite(cast(pattern))),
        first_nonzero=_first(1, infinity, lambda pattern: bool(cast(pattern) != 0)),
    )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number from ``low`` to ``high`` for which ``holds``, which is true from there on, and at ``high``."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
