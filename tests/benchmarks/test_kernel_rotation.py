"""Inputs of the kernel benchmarks leave the L2 between two calls, in bounded memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

from benchmarks.kernels.timing import FOOTPRINT_BYTES, LEAST_SETS, input_sets

LARGEST_L2 = 126 << 20  # of a B200, the largest of them


# A convolution of one token, a state update of one row (Granite, Nemotron), a prefill of 4,096 tokens, all weights.
@pytest.mark.parametrize("moved", [1, 327_680, 806_000, 8_440_000, 160_000_000, FOOTPRINT_BYTES, 4_200_000_000])
def test_the_sets_leave_the_cache_and_fit_in_memory(moved: int) -> None:
    sets = input_sets(moved)
    assert sets >= LEAST_SETS
    # A byte that is read and written in place counts twice.
    assert sets * moved / 2 >= 3 * LARGEST_L2
    assert sets * moved < max(FOOTPRINT_BYTES + moved, LEAST_SETS * moved + 1)


def test_small_calls_have_as_many_sets_as_their_bytes_ask_for() -> None:
    assert input_sets(840_000) == 1000
    assert input_sets(840_001) == 1000
    assert input_sets(839_999) == 1001


def test_a_call_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        input_sets(0)
