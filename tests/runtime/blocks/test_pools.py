"""Pools refuse what would corrupt them, and their integrity checks see it."""

from itertools import permutations

import pytest

from hybridge.runtime.blocks import BlockPool, PoolError, SlotPool


def test_a_block_is_free_when_its_last_reference_goes():
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.retain([first])
    pool.release([first, second])
    assert (pool.free, pool.references(first), pool.references(second)) == (2, 1, 0)
    pool.release([first])
    assert (pool.free, pool.used) == (3, 0)


def test_the_longest_free_block_is_taken_first():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.release(blocks[:1])
    pool.release(blocks[1:])
    assert pool.allocate(3) == [blocks[0], blocks[2], blocks[1]]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda pool: pool.release([0, 0]), "the free block 0: it was released twice"),
        (lambda pool: pool.retain([1]), "the free block 1"),
        (lambda pool: pool.allocate(2), "expected 2 free blocks, found 1"),
        (lambda pool: pool.check_integrity([0, 0]), "block 0: 2 holders, but 1"),
    ],
)
def test_the_block_pool_refuses(action, message):
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    with pytest.raises(PoolError, match=message):
        action(pool)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda slots: slots.release([0, 0]), "slot 0: it was released twice"),
        (lambda slots: [slots.allocate() for _ in range(2)], "all 2 in use"),
        (lambda slots: slots.check_integrity([0, 0]), "two owners"),
        (lambda slots: slots.check_integrity([1]), "have owners"),
    ],
)
def test_the_slot_pool_refuses(action, message):
    slots = SlotPool(2)
    assert slots.allocate() == 0
    with pytest.raises(PoolError, match=message):
        action(slots)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_slots_in_use_are_contiguous_whatever_the_order_of_release(order: tuple[int, ...]) -> None:
    slots = SlotPool(6)
    for _ in range(5):
        slots.allocate()
    slots.release(order)
    assert [slots.allocate() for _ in range(5)] == [0, 1, 2, 3, 5]
