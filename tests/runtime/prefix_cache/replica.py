"""What a tree knows, kept by its events alone."""

from __future__ import annotations

from collections.abc import Iterable

from hybridge.runtime.prefix_cache.events import Change, Event
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from tests.runtime.prefix_cache.fake_memory import tokens_of

Sequences = set[tuple[str, tuple[int, ...]]]


class Replica:
    """``kv``: every beginning of a sequence whose last token has KV; ``states``: those with a state."""

    def __init__(self) -> None:
        self.kv: Sequences = set()
        self.states: Sequences = set()

    def follow(self, events: Iterable[Event]) -> None:
        """AssertionError where something is inserted that is there, or removed that is not."""
        for event in events:
            tokens, name = event.tokens, event.namespace
            assert len(tokens) == event.end > event.start
            state = event.change in (Change.STATE_INSERTED, Change.STATE_REMOVED)
            known = self.states if state else self.kv
            changed = {(name, tokens[:end]) for end in range(event.end if state else event.start + 1, event.end + 1)}
            if event.change in (Change.KV_INSERTED, Change.STATE_INSERTED):
                assert not changed & known, f"{event} of what was there"
                known |= changed
            else:
                assert changed <= known, f"{event} of what was not there"
                known -= changed

    def check(self, tree: RadixTree) -> None:
        """AssertionError unless this is what ``tree`` has."""
        kv: Sequences = set()
        states: Sequences = set()
        for name, root in tree.namespaces().items():
            for node in root.walk():
                tokens = tokens_of(node)
                kv |= {(name, tokens[:end]) for end in range(node.start + 1, node.end + 1)}
                if node.state is not None:
                    states.add((name, tokens))
        assert self.kv == kv
        assert self.states == states
