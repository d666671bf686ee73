"""What the tree once had: the beginnings of sequences whose states or KV had to go."""

from __future__ import annotations

from collections import Counter, OrderedDict
from hashlib import blake2b

from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES, cut

# Tokens by which a ghost is found; those that it may have more are compared by a hash.
_SHORT = 16

# Namespace and first tokens, length in bytes, and a hash of the whole.
_Beginning = tuple[str, bytes]
_Ghost = tuple[_Beginning, int, bytes]


class Ghosts:
    """The latest ``capacity`` sequences of tokens that went."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._gone: OrderedDict[_Ghost, None] = OrderedDict()
        # How many there are of each length.
        self._lengths: dict[_Beginning, Counter[int]] = {}

    def add(self, namespace: str, key: bytes) -> None:
        """Note that what could be resumed after ``key`` has gone."""
        beginning = namespace, cut(key, 0, _SHORT)
        ghost = beginning, len(key), _hash(key).digest()
        if ghost not in self._gone:
            self._lengths.setdefault(beginning, Counter())[len(key)] += 1
        self._gone[ghost] = None
        self._gone.move_to_end(ghost)
        if len(self._gone) > self._capacity:
            self._forget(*self._gone.popitem(last=False)[0])

    def knows(self, namespace: str, key: bytes) -> bool:
        """Whether something that ``key`` begins with has gone."""
        for length in range(min(len(key), _SHORT * TOKEN_BYTES), 0, -TOKEN_BYTES):
            beginning = namespace, key[:length]
            hashed, end = _hash(b""), 0
            for size in sorted(size for size in self._lengths.get(beginning, ()) if size <= len(key)):
                hashed.update(key[end:size])
                end = size
                if (beginning, size, hashed.digest()) in self._gone:
                    return True
        return False

    def _forget(self, beginning: _Beginning, size: int, _: bytes) -> None:
        lengths = self._lengths[beginning]
        lengths[size] -= 1
        if not lengths[size]:
            del lengths[size]
        if not lengths:
            del self._lengths[beginning]


def _hash(key: bytes) -> blake2b:
    return blake2b(key, digest_size=8)
