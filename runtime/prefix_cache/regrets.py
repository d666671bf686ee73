"""States that had to go, or were never taken: who asks for them after all shows what they were worth.

So a kind of state that memory is too short for is still learned about, and a place that is asked for again and again
gets its state in the end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES

# A state is known by its first and last tokens and by its length: one that is taken for another is a wrong guess of
# what is worth keeping, and nothing worse.
_FIRST, _LAST = 16 * TOKEN_BYTES, 32 * TOKEN_BYTES
_SAME_BEGINNING = 32


@dataclass
class _Gone:
    """A state that is missing: its last tokens, its kind, how often it was of use or asked for."""

    last: bytes
    kind: Kind
    uses: int = 0


class Regrets:
    """The latest ``capacity`` beginnings of such states, each with the last few that had it."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        # By namespace and first tokens, then by length in bytes.
        self._gone: OrderedDict[tuple[str, bytes], dict[int, _Gone]] = OrderedDict()

    def add(self, namespace: str, key: bytes, kind: Kind, uses: int = 0) -> None:
        """The state after ``key`` is not there, or no longer and was of use so often."""
        first = namespace, key[:_FIRST]
        same = self._gone.setdefault(first, {})
        known = same.pop(len(key), None)
        if known is None or known.last != key[-_LAST:]:
            known = _Gone(key[-_LAST:], kind)
        known.uses = max(known.uses, uses)
        same[len(key)] = known
        while len(same) > _SAME_BEGINNING:
            del same[next(iter(same))]
        self._gone.move_to_end(first)
        if len(self._gone) > self._capacity:
            self._gone.popitem(last=False)

    def ask(self, namespace: str, key: bytes, found: int) -> Kind | None:
        """A prompt asks for the longest one that it begins with, if that has more than ``found`` tokens.

        The kind of the state where it is the first that has a use for it.
        """
        same = self._gone.get((namespace, key[:_FIRST]), {})
        for size in sorted((size for size in same if found * TOKEN_BYTES < size <= len(key)), reverse=True):
            gone = same[size]
            if key.endswith(gone.last, 0, size):
                gone.uses += 1
                return gone.kind if gone.uses == 1 else None
        return None

    def uses(self, namespace: str, key: bytes) -> int:
        """How often the state after ``key`` was of use, or asked for since it is missing."""
        gone = self._gone.get((namespace, key[:_FIRST]), {}).get(len(key))
        return gone.uses if gone is not None and gone.last == key[-_LAST:] else 0
