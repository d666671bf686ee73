"""Shared blocks are those of the same tokens after the same tokens, whatever the hash says."""

import pytest

from hybridge.runtime.blocks import BlockManager, CacheNeeds, Reservation, SequenceMemory
from hybridge.runtime.blocks.block_prefix_cache import BlockPrefixCache
from hybridge.runtime.engines.pool_sizes import PoolSizes

SIZE = 2


def computed(manager: BlockManager, tokens: list[int], namespace: str = "") -> SequenceMemory:
    """A sequence of which all tokens have been computed, and which still runs."""
    memory = SequenceMemory(tokens, namespace)
    manager.match(memory)
    reservation = Reservation(manager)
    assert reservation.extend(memory, len(tokens) - memory.length)
    reservation.commit()
    return memory


def found(manager: BlockManager, tokens: list[int], namespace: str = "", reuse: bool = True) -> list[int]:
    """The blocks that a sequence of these tokens begins with."""
    memory = SequenceMemory(tokens, namespace)
    manager.match(memory, reuse)
    blocks = list(memory.blocks)
    manager.release(memory)
    return blocks


@pytest.fixture(params=["hash", "one hash for all"])
def manager(request):
    sizes = PoolSizes(8, SIZE, 0)
    cache = BlockPrefixCache(sizes) if request.param == "hash" else BlockPrefixCache(sizes, lambda before, own: 0)
    return BlockManager(SIZE, CacheNeeds(kv=True, state=False), 4, 16, cache)


def test_full_blocks_of_a_common_prefix_are_shared(manager):
    first = computed(manager, [1, 2, 3, 4, 5])
    assert found(manager, [1, 2, 3, 4, 9, 9]) == first.blocks[:2]
    assert found(manager, [1, 2, 9, 9, 5]) == first.blocks[:1]
    assert found(manager, [1, 2, 3, 4, 9, 9], reuse=False) == []


def test_one_token_is_left_to_compute(manager):
    first = computed(manager, [1, 2, 3, 4])
    assert found(manager, [1, 2, 3, 4]) == first.blocks[:1]
    assert found(manager, [1, 2, 3, 4, 5]) == first.blocks


def test_equal_tokens_after_other_tokens_are_not_shared(manager):
    computed(manager, [1, 2, 3, 4])
    assert found(manager, [3, 4, 3, 4, 0]) == []


def test_namespaces_do_not_share(manager):
    computed(manager, [1, 2, 3], "a")
    assert found(manager, [1, 2, 3], "b") == []
    assert len(found(manager, [1, 2, 3], "a")) == 1


def test_content_outlives_its_sequence_until_its_block_is_evicted(manager):
    first = computed(manager, [1, 2, 3, 4])
    blocks = list(first.blocks)
    manager.release(first)
    assert manager.pool.available == 8 and manager.pool.free == 6
    assert found(manager, [1, 2, 3, 4, 5]) == blocks
    other = computed(manager, [9] * 14)  # takes the six free blocks, then the end of the sequence
    assert found(manager, [1, 2, 3, 4, 5]) == blocks[:1]
    manager.release(other)
    manager.cache.clear()
    assert found(manager, [1, 2, 3, 4, 5]) == [] and manager.pool.free == 8


def test_two_that_computed_the_same_keep_their_blocks_and_share_what_follows(manager):
    first, second = SequenceMemory([1, 2, 7]), SequenceMemory([1, 2, 3, 4])
    for memory in (first, second):
        manager.match(memory)
    reservation = Reservation(manager)
    assert reservation.extend(first, 3) and reservation.extend(second, 4)
    reservation.commit()
    assert not set(first.blocks) & set(second.blocks)
    assert found(manager, [1, 2, 3, 4, 5]) == [first.blocks[0], second.blocks[1]]
