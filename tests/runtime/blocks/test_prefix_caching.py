"""Shared blocks are those of the same tokens after the same tokens, whatever the hash says."""

import pytest

from hybridge.runtime.blocks import BlockPool, SequenceMemory
from hybridge.runtime.blocks.prefix_caching import PrefixCachingAllocator

SIZE = 2


def computed(allocator: PrefixCachingAllocator, tokens: list[int], namespace: str = "") -> SequenceMemory:
    memory = SequenceMemory(tokens, namespace)
    allocator.adopt(memory)
    memory.blocks += allocator.allocate(-(-len(tokens) // SIZE) - len(memory.blocks))
    memory.length = len(tokens)
    allocator.publish(memory)
    return memory


def adopted(allocator: PrefixCachingAllocator, tokens: list[int], namespace: str = "") -> list[int]:
    memory = SequenceMemory(tokens, namespace)
    allocator.adopt(memory)
    allocator.release(memory.blocks)
    return memory.blocks


@pytest.fixture(params=["hash", "one hash for all"])
def allocator(request):
    pool = BlockPool(8)
    if request.param == "hash":
        return PrefixCachingAllocator(pool, SIZE)
    return PrefixCachingAllocator(pool, SIZE, lambda before, own: 0)


def test_full_blocks_of_a_common_prefix_are_shared(allocator):
    first = computed(allocator, [1, 2, 3, 4, 5])
    assert adopted(allocator, [1, 2, 3, 4, 9, 9]) == first.blocks[:2]
    assert adopted(allocator, [1, 2, 9, 9, 5]) == first.blocks[:1]


def test_one_token_is_left_to_compute(allocator):
    first = computed(allocator, [1, 2, 3, 4])
    assert adopted(allocator, [1, 2, 3, 4]) == first.blocks[:1]
    assert adopted(allocator, [1, 2, 3, 4, 5]) == first.blocks


def test_equal_tokens_after_other_tokens_are_not_shared(allocator):
    computed(allocator, [1, 2, 3, 4])
    assert adopted(allocator, [3, 4, 3, 4, 0]) == []


def test_namespaces_do_not_share(allocator):
    computed(allocator, [1, 2, 3], "a")
    assert adopted(allocator, [1, 2, 3], "b") == []
    assert len(adopted(allocator, [1, 2, 3], "a")) == 1


def test_content_outlives_its_sequence_until_the_block_is_taken(allocator):
    first = computed(allocator, [1, 2, 3, 4])
    allocator.release(first.blocks)
    assert allocator.free == 8
    assert adopted(allocator, [1, 2, 3, 4, 5]) == first.blocks
    allocator.allocate(7)  # the six blocks without content, then the end of the sequence
    assert adopted(allocator, [1, 2, 3, 4, 5]) == first.blocks[:1]
    assert list(allocator.cached()) == first.blocks[:1]


def test_two_who_computed_the_same_keep_their_blocks_and_share_what_follows(allocator):
    first, second = SequenceMemory([1, 2, 7]), SequenceMemory([1, 2, 3, 4])
    for memory in (first, second):
        memory.blocks = allocator.allocate(2)
        memory.length = len(memory.tokens)
        allocator.publish(memory)
    assert adopted(allocator, [1, 2, 3, 4, 5]) == [first.blocks[0], second.blocks[1]]
