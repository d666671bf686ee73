"""Memory in huge pages."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.onnxruntime.huge_pages import HugePages, zeros_together


def test_parts_are_zeros_of_their_own_aligned_for_vectors() -> None:
    shapes = {"a": (3, 5, 7), "b": (0, 4), "c": (1,), "d": (70, 1 << 17)}
    found = zeros_together({name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()})
    for name, array in found.items():
        assert array.shape == shapes[name] and not array.any()
        assert array.ctypes.data % 64 == 0 or not array.size
        array[...] = ord(name)
    for name, array in found.items():
        assert (array == ord(name)).all(), name
    assert zeros_together({}) == {}


def test_parts_that_do_not_fit_get_arrays_of_their_own() -> None:
    pages = HugePages(MIB)
    parts = [pages.zeros(size) for size in (10, 3 * MIB, 500, MIB - 700, 100)]
    for number, part in enumerate(parts):
        part[...] = number
    for number, part in enumerate(parts):
        assert part.ctypes.data % 64 == 0 and (part == number).all()
