"""Pinned prefixes: computed once, never evicted until they are dropped by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.artifact.json_fields import Fields, load_given_json_object
from hybridge.runtime.blocks.records import changes
from hybridge.runtime.prefix_cache.pins import Pin
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.token_key import common_length, key_from_tokens
from hybridge.runtime.prefix_cache.token_tree import TreeMatch
from hybridge.runtime.scheduler import Scheduler


@dataclass(frozen=True)
class PinnedPrefix:
    """The first tokens of many prompts, such as a system prompt."""

    name: str
    token_ids: tuple[int, ...]
    namespace: str = ""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)


# How often a prefix is computed again if it is evicted before it can be pinned.
PIN_TRIES = 3


class PrefixEvictedError(RequestError):
    """A prefix was computed, and evicted before it could be pinned: running requests needed its memory."""


class PinnedPrefixes:
    """Pinned prefixes by name. Sequences cannot use their memory, so enough must remain for one of full length."""

    def __init__(self, cache: RadixCache, scheduler: Scheduler) -> None:
        self._cache, self._scheduler, self.records = cache, scheduler, scheduler.records
        self._pins: dict[str, tuple[PinnedPrefix, Pin]] = {}

    def add(self, prefix: PinnedPrefix, compute: Callable[[], object]) -> PinnedPrefix:
        """Pin ``prefix``, which ``compute`` puts into the cache where it is not there yet.

        RequestError when its name is taken by other tokens, or the pools are too small for it; PrefixEvictedError when
        it is missing after ``compute``; trying again may help.
        """
        known = self._pins.get(prefix.name)
        if known is not None:
            if known[0] != prefix:
                raise RequestError(f"{prefix.name!r}: expected a new name, found one of another prefix: drop it first")
            return known[0]
        self._check(prefix)
        key, tries = key_from_tokens(prefix.token_ids), 0
        match = self._cache.tree.match(key, prefix.namespace)
        while match.length < prefix.length and tries < PIN_TRIES:
            with self._cache.keeping_ends():
                compute()
            match, tries = self._cache.tree.match(key, prefix.namespace), tries + 1
        if match.length < prefix.length:
            raise PrefixEvictedError(
                f"{prefix.name!r}: expected room for it in the prefix cache, found none: increase memory_bytes, "
                "or try again"
            )
        self._pin(prefix, key, match)
        return prefix

    @changes
    def _pin(self, prefix: PinnedPrefix, key: bytes, match: TreeMatch) -> None:
        """Pin ``prefix``, of this key, which has been found."""
        tree = self._cache.tree
        # Without recurrent layers it may end inside a node, the rest of which can be evicted.
        node, _ = tree.insert(key, tree.blocks_of(match.node, match.length), None, prefix.namespace)
        self._pins[prefix.name] = prefix, self._cache.pins.add(node)
        self._scheduler.capacity.set_aside(*self._pinned())

    @changes
    def drop(self, name: str) -> None:
        """Let the prefix be evicted like any other; RequestError if there is none of that name."""
        if name not in self._pins:
            raise RequestError(f"{name!r}: expected one of the prefixes {sorted(self._pins)}: cache it first")
        self._cache.pins.remove(self._pins.pop(name)[1])
        self._scheduler.capacity.set_aside(*self._pinned())

    def start_over(self) -> None:
        """The cache has started over: of its pins, keep those that have names."""
        self._cache.pins.keep([pin for _, pin in self._pins.values()])
        self._scheduler.capacity.set_aside(*self._pinned())

    def names(self) -> Mapping[str, PinnedPrefix]:
        """All prefixes by name."""
        return {name: prefix for name, (prefix, _) in self._pins.items()}

    def _pinned(self) -> tuple[int, int]:
        """Blocks and slots of all prefixes that sequences could use otherwise; not those of packed states."""
        blocks, states = self._cache.pins.counts()
        return blocks, self._slots(states)

    def _slots(self, states: int) -> int:
        """Slots of the rows that this many states take."""
        return 0 if self._cache.packs else states

    def _check(self, prefix: PinnedPrefix) -> None:
        blocks, slots = self._pinned()
        manager, token_ids = self._scheduler.manager, prefix.token_ids
        others = [each.token_ids for each, _ in self._pins.values() if each.namespace == prefix.namespace]
        shared = max((_common_length(token_ids, other) for other in others), default=0)
        # One block more: a sequence that continues inside the last one has a copy.
        blocks += manager.blocks_for(prefix.length) - shared // manager.block_size + 1
        slots += self._slots(int(manager.needs.state and token_ids not in others))
        running = [sequence.request for sequence in self._scheduler.sequences.values()]
        self._scheduler.capacity.check_pinned(blocks * manager.needs.kv, slots, prefix.name, running)


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    return common_length(key_from_tokens(a), key_from_tokens(b), 0)


def read_prefixes(path: Path) -> list[tuple[str, Any]]:
    """Names and prompts of a file {"prefixes": {name: text, token ids or messages}}; RequestError: malformed."""
    fields = Fields(load_given_json_object(path, RequestError), str(path), RequestError)
    prompts = fields.object("prefixes")
    fields.refuse_unknown()
    for name, prompt in prompts.items():
        if not isinstance(prompt, (str, list)) or not prompt:
            raise RequestError(f"{path}: {name!r}: expected text, token ids or messages, found {json.dumps(prompt)}")
    return list(prompts.items())


def checked_name(name: str | None, token_ids: Sequence[int], namespace: str, taken: Mapping[str, PinnedPrefix]) -> str:
    """``name``, or that under which the tokens are pinned already, or one that is free."""
    if name is not None:
        return name
    for prefix in taken.values():
        if (prefix.token_ids, prefix.namespace) == (tuple(token_ids), namespace):
            return prefix.name
    return next(f"prefix {i}" for i in range(len(taken) + 1) if f"prefix {i}" not in taken)
