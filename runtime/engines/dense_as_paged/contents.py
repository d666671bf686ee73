"""Contents of a dense engine's blocks or slots: copied by reference, materialized on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

Arrays = Mapping[str, np.ndarray]
NOTHING: Arrays = MappingProxyType({})


class Content:
    """KV of one block, or recurrent states of one slot.

    ids     blocks (slots) that hold it; with more than one of them it must not be written to
    length  tokens that a block holds
    row     its batch row; -1: in ``arrays``, read-only and cut to ``length``
    """

    __slots__ = ("arrays", "ids", "length", "row")

    def __init__(self, ids: set[int], arrays: Arrays = NOTHING, length: int = 0) -> None:
        self.ids, self.arrays, self.length, self.row = ids, arrays, length, -1


class Contents:
    """By block or slot; None: nothing yet, which for a slot is the state before the first token."""

    def __init__(self, count: int) -> None:
        self._of: list[Content | None] = [None] * count
        # Contents outside of the batch rows.
        self._parked: set[Content] = set()
        self.in_use: Callable[[int], bool] = lambda id_: True

    def get(self, id_: int) -> Content | None:
        """The content of ``id_``."""
        return self._of[id_]

    def share(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` does."""
        self.clear(target)
        content = self._of[target] = self._of[source]
        if content is not None:
            content.ids.add(target)

    def put(self, id_: int, arrays: Arrays, length: int) -> None:
        """Let ``id_`` hold ``arrays``, which no longer change."""
        self.clear(id_)
        content = self._of[id_] = Content({id_}, arrays, length)
        self._parked.add(content)

    def clear(self, id_: int) -> None:
        """Let ``id_`` hold nothing."""
        content = self._of[id_]
        if content is not None:
            content.ids.discard(id_)
            if not content.ids:
                self._parked.discard(content)
        self._of[id_] = None

    def own(self, id_: int) -> Content:
        """The content of ``id_`` that no other holds: a new one, to be filled, where there is none or it is shared."""
        content = self._of[id_]
        if content is None or len(content.ids) > 1:
            if content is not None:
                content.ids.discard(id_)
            content = self._of[id_] = Content({id_})
        return content

    def needed(self, content: Content, aside: int = -1) -> bool:
        """Whether a block (slot) with an owner, ``aside`` not counted, holds it."""
        return any(id_ != aside and self.in_use(id_) for id_ in content.ids)

    def park(self, content: Content, arrays: Arrays) -> None:
        """``content`` leaves its batch row for ``arrays``; parked contents without an owner are dropped."""
        content.row, content.arrays = -1, arrays
        self._parked.add(content)
        for other in [other for other in self._parked if not self.needed(other)]:
            self.drop(other)

    def occupy(self, content: Content, row: int) -> None:
        """``content`` is in batch row ``row`` from now on."""
        content.row, content.arrays = row, NOTHING
        self._parked.discard(content)

    def drop(self, content: Content) -> None:
        """Forget it."""
        for id_ in list(content.ids):
            self.clear(id_)
