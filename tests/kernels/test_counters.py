"""Memory of counters: the owner of each piece."""

from __future__ import annotations

import itertools

from hybridge.trt_plugins.kernels.counters import CounterPool


class Allocations:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, nbytes: int) -> int:
        self.sizes.append(nbytes)
        return len(self.sizes) << 30


def test_pieces_are_apart_and_aligned() -> None:
    allocations = Allocations()
    pool = CounterPool(allocations)
    pieces = [(pool.take(nbytes), nbytes) for nbytes in (4, 300, 256, 1)]
    assert all(address % 256 == 0 for address, _ in pieces)
    ends = sorted((address, address + nbytes) for address, nbytes in pieces)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    assert len(allocations.sizes) == 1


def test_what_is_given_back_is_taken_again_by_a_plan_of_that_size() -> None:
    pool = CounterPool(Allocations())
    first = pool.take(500)
    pool.release(first, 500)
    assert pool.take(4) != first
    assert pool.take(512) == first
    assert pool.take(512) != first


def test_large_pieces_and_full_chunks_ask_for_more() -> None:
    allocations = Allocations()
    pool = CounterPool(allocations)
    pool.take(3 << 20)
    for _ in range(5):
        pool.take(256 << 10)
    assert allocations.sizes == [3 << 20, 1 << 20, 1 << 20]
