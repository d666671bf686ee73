"""How often prompts asked for states that were evicted, or not stored because there was no room.

So a state that is requested repeatedly is stored again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES

# A state is known by its first and last tokens and by its length: one that is taken for another is a wrong estimate of
# what is worth keeping, and nothing worse.
_FIRST, _LAST = 16 * TOKEN_BYTES, 32 * TOKEN_BYTES
_SAME_BEGINNING = 32


@dataclass
class _Missing:
    """A state that is missing: its last tokens, and how often it was used or requested."""

    last: bytes
    uses: int = 0


class EvictionHistory:
    """The latest ``capacity`` beginnings of such states, each with the last few that had it."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        # By namespace and first tokens, then by length in bytes.
        self._missing: OrderedDict[tuple[str, bytes], dict[int, _Missing]] = OrderedDict()

    def add(self, namespace: str, key: bytes, uses: int = 0) -> None:
        """The state after ``key`` is missing; until now it was used so often."""
        first = namespace, key[:_FIRST]
        same = self._missing.setdefault(first, {})
        known = same.pop(len(key), None)
        if known is None or known.last != key[-_LAST:]:
            known = _Missing(key[-_LAST:])
        known.uses = max(known.uses, uses)
        same[len(key)] = known
        while len(same) > _SAME_BEGINNING:
            del same[next(iter(same))]
        self._missing.move_to_end(first)
        if len(self._missing) > self._capacity:
            self._missing.popitem(last=False)

    def ask(self, namespace: str, key: bytes, found: int) -> None:
        """A prompt could use the longest one that it begins with, if that has more than ``found`` tokens: count it."""
        same = self._missing.get((namespace, key[:_FIRST]), {})
        for size in sorted((size for size in same if found * TOKEN_BYTES < size <= len(key)), reverse=True):
            if key.endswith(same[size].last, 0, size):
                same[size].uses += 1
                return

    def uses(self, namespace: str, key: bytes) -> int:
        """Number of times that the state after ``key`` was used, or requested while missing."""
        missing = self._missing.get((namespace, key[:_FIRST]), {}).get(len(key))
        return missing.uses if missing is not None and missing.last == key[-_LAST:] else 0
