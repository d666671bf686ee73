"""Arrays of any leading axes over the same memory, as values for sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnxruntime as ort

Bound = tuple[np.ndarray, ort.OrtValue]


class RowArrays:
    """A buffer for each of ``shapes``, which grows to the largest leading axes requested so far.

    dtypes: float32 where it has none.
    Its content is that of the arrays used last; it is lost when it grows.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype] = MappingProxyType({})
    ) -> None:
        self._shapes, self._dtypes, self._room = dict(shapes), dict(dtypes), 0
        self._memory: dict[str, np.ndarray] = {}
        self._found: dict[tuple[int, ...], dict[str, Bound]] = {}

    @property
    def memory(self) -> object:
        """The present memory, by identity: another one once it has grown."""
        return self._memory

    def arrays(self, *leading: int) -> Mapping[str, Bound]:
        """By name, [*leading, *shape]; uninitialised memory, shared with arrays of other leading axes."""
        known = self._found.get(leading)
        if known is not None:
            return known
        rows = math.prod(leading)
        if rows > self._room:
            self._found.clear()
            self._room = rows
            self._memory = {
                name: np.empty(rows * math.prod(shape), self._dtypes.get(name, np.float32))
                for name, shape in self._shapes.items()
            }
        self._found[leading] = {
            name: bound(self._memory[name][: rows * math.prod(shape)].reshape(*leading, *shape))
            for name, shape in self._shapes.items()
        }
        return self._found[leading]


def bound(array: np.ndarray) -> Bound:
    """``array``, which the caller keeps, and the same as a value for a session."""
    assert array.flags.c_contiguous
    return array, ort.OrtValue.ortvalue_from_numpy(array)
