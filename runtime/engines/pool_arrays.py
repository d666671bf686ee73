"""Arrays that come from another engine, in the type that this one holds its pools in."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError


def pool_array(name: str, array: np.ndarray, dtype: DType) -> np.ndarray:
    """``array`` of pool ``name`` as ``dtype``, rounded to the nearest; EngineError where a number is beyond it."""
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype.numpy)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        raise EngineError(
            f"{name}: expected numbers that {dtype.value} can hold, found up to {float(np.abs(array).max()):.3g}: "
            "load it with the engine that saved it"
        )
    return converted
