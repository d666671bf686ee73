"""How many sets of inputs take turns, so that a call finds none of its inputs in the L2."""

from __future__ import annotations

import math

FOOTPRINT_BYTES = 840_000_000
"""Bytes that all sets of a rotation move. A state that is updated in place moves twice, so that at least half of them
are different addresses: 420 MB, several times the L2 of every GPU that the kernels target (60 MB on an H200)."""
LEAST_SETS = 2


def input_sets(bytes_of_a_call: int) -> int:
    """Sets that move FOOTPRINT_BYTES together, LEAST_SETS at least.

    Their memory is at most FOOTPRINT_BYTES and one set more, or LEAST_SETS sets where a set is larger than that.
    """
    if bytes_of_a_call < 1:
        raise ValueError(f"expected a call that moves at least 1 byte, found {bytes_of_a_call}")
    return max(LEAST_SETS, math.ceil(FOOTPRINT_BYTES / bytes_of_a_call))
