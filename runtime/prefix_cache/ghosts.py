"""What the tree once had: the beginnings of sequences whose states or KV had to go."""

from __future__ import annotations

from collections import OrderedDict

from runtime.prefix_cache.token_key import TOKEN_BYTES, cut

# Tokens by which a ghost is found; those that it may have more are compared by a hash.
_SHORT = 16
_SAME_BEGINNING = 32


class Ghosts:
    """The latest ``capacity`` sequences of tokens that went."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        # By namespace and first tokens: lengths in bytes with hashes of the whole.
        self._gone: OrderedDict[tuple[str, bytes], dict[int, int]] = OrderedDict()

    def add(self, namespace: str, key: bytes) -> None:
        """Note that what could be resumed after ``key`` has gone."""
        short = namespace, cut(key, 0, _SHORT)
        same = self._gone.setdefault(short, {})
        same[len(key)] = hash(key)
        while len(same) > _SAME_BEGINNING:
            del same[next(iter(same))]
        self._gone.move_to_end(short)
        if len(self._gone) > self._capacity:
            self._gone.popitem(last=False)

    def knows(self, namespace: str, key: bytes) -> bool:
        """Whether something that ``key`` begins with has gone."""
        for length in range(min(len(key), _SHORT * TOKEN_BYTES), 0, -TOKEN_BYTES):
            for size, hashed in self._gone.get((namespace, key[:length]), {}).items():
                if size <= len(key) and hash(key[:size]) == hashed:
                    return True
        return False
