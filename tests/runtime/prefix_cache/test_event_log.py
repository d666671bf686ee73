"""The event log: a copy that follows it knows what the tree knows."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.events import Change, Event, EventLog
from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES, key_from_tokens
from tests.runtime.prefix_cache.replica import Replica
from tests.runtime.prefix_cache.world import World, run


def event(tokens: tuple[int, ...], change: Change = Change.KV_INSERTED) -> Event:
    return Event(change, "", 0, len(tokens), (key_from_tokens(tokens),))


def test_a_replica_follows_splits_merges_and_evictions() -> None:
    world, replica = World(), Replica()

    def follow() -> None:
        replica.follow(world.tree.events.drain())
        replica.check(world.tree)

    world.keep(run(0, 40))
    world.keep((*run(0, 17), 7, 8))  # splits at 17
    follow()
    world.keep(run(0, 40), namespace="tenant")
    world.keep(run(0, 17))  # the tombstone of the split gets a state
    follow()
    world.tree.drop_state(world.node(run(0, 17)))
    while world.tree.evict_state():  # leaves go, and what is left is merged
        follow()
    world.tree.clear()
    follow()
    assert not replica.kv and not replica.states


def test_a_stolen_state_is_reported() -> None:
    world, replica = World(), Replica()
    node = world.insert(run(0, 20))
    slot = world.tree.take_state(node)
    replica.follow(world.tree.events.drain())
    replica.check(world.tree)
    assert not replica.states and replica.kv
    world.slots.release([slot])
    world.tree.unlock(node)
    replica.follow(world.tree.events.drain())
    replica.check(world.tree)


def test_an_event_has_all_tokens_of_its_sequence() -> None:
    world = World()
    world.keep((9, 8, 7), namespace="a")
    world.keep((9, 8, 7, 6, 5), namespace="a")
    events = [(e.change, e.namespace, e.start, e.end, e.tokens) for e in world.tree.events.drain()]
    assert events == [
        (Change.KV_INSERTED, "a", 0, 3, (9, 8, 7)),
        (Change.STATE_INSERTED, "a", 0, 3, (9, 8, 7)),
        (Change.KV_INSERTED, "a", 3, 5, (9, 8, 7, 6, 5)),
        (Change.STATE_INSERTED, "a", 3, 5, (9, 8, 7, 6, 5)),
    ]


@pytest.mark.parametrize(("capacity", "tokens", "kept"), [(3, 1000, 3), (1000, 25, 2), (0, 1000, 0), (1000, 9, 0)])
def test_a_full_log_drops_the_oldest_and_says_so(capacity: int, tokens: int, kept: int) -> None:
    log, events = EventLog(capacity, tokens), [event((first,) * 10) for first in range(7)]
    for each in events:
        log.record(each)
    assert log.dropped == 7 - kept
    assert log.drain() == events[7 - kept :]
    assert not log.drain() and not log.dropped, "what was drained is not dropped"
    log.record(event((1, 2, 3)))
    assert log.dropped == (capacity == 0), "what was drained still takes room"


def test_events_share_the_tokens_of_the_tree() -> None:
    world = World()
    node = world.insert(run(0, 300))
    (change, _) = world.tree.events.drain()
    assert change.parts[0] is node.edge and len(node.edge) == 300 * TOKEN_BYTES
