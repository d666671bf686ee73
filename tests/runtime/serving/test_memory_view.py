"""What a view of the memory says is what pools, scheduler and tree hold."""

from __future__ import annotations

from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.memory_view import memory_view
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop

COMMON = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_running_requests_and_the_tree() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(), memory_bytes=40_000)
    empty = memory_view(loop)
    assert empty.blocks.running == empty.slots.running == empty.blocks.cached == 0 and empty.blocks.free > 0
    assert empty.sequences == () == empty.nodes
    for index in range(3):
        loop.add(make_request([*COMMON, 20 + index], 6))
        loop.step()
    view = memory_view(loop)
    manager = loop.scheduler.manager
    assert [each.tokens for each in view.sequences] == [len(each.tokens) for each in loop.scheduler.sequences.values()]
    assert all(each.running and each.tokens - each.computed == 1 for each in view.sequences)
    assert view.blocks.running + view.blocks.cached == manager.pool.used and view.slots.running == 3
    assert view.slots.running + view.slots.cached == manager.slots.used
    assert (view.blocks.total, view.slots.total) == (manager.pool.num_blocks, manager.slots.num_slots)
    run_all(loop)
    loop.add(make_request(COMMON, 1, priority=1))
    run_all(loop)
    view = memory_view(loop)
    assert view.sequences == () and view.blocks.running == view.slots.running == 0 < view.blocks.cached
    cache = loop.prefix_cache
    assert cache is not None and view.nodes is not None and len(view.nodes) == cache.tree.nodes > 3
    assert view.slots.cached == sum(node.has_state for node in view.nodes) == cache.tree.states
    for place, node in enumerate(view.nodes):
        assert node.end - node.tokens == (0 if node.parent is None else view.nodes[node.parent].end)
        assert node.parent is None or node.parent < place
    # Prompts that differ in their last token share a node.
    assert max(sum(each.parent == place for each in view.nodes) for place in range(len(view.nodes))) >= 3
    few = memory_view(loop, most_nodes=2)
    assert few.nodes == view.nodes[:2] and few.hidden_nodes == len(view.nodes) - 2


def test_without_a_tree() -> None:
    loop, _ = toy_loop(prefix_cache="off")
    loop.add(make_request([1, 2], 2))
    loop.step()
    view = memory_view(loop, most_sequences=0)
    assert view.nodes is None and view.hidden_nodes == 0 and view.sequences == () and view.slots.running == 1
