"""The prefixes that were evicted, to distinguish such a miss from a new prompt."""

from __future__ import annotations

from collections import Counter, OrderedDict
from hashlib import blake2b

from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES, cut

# Tokens by which a prefix is found; those that it may have more are compared by a hash.
_SHORT = 16

# Namespace and first tokens, length in bytes, and a hash of the whole.
_Beginning = tuple[str, bytes]
_Evicted = tuple[_Beginning, int, bytes]


class EvictedPrefixes:
    """The latest ``capacity`` of them."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._evicted: OrderedDict[_Evicted, None] = OrderedDict()
        # How many there are of each length.
        self._lengths: dict[_Beginning, Counter[int]] = {}

    def add(self, namespace: str, key: bytes) -> None:
        """Record that the state after ``key`` is evicted."""
        beginning = namespace, cut(key, 0, _SHORT)
        prefix = beginning, len(key), _hash(key).digest()
        if prefix not in self._evicted:
            self._lengths.setdefault(beginning, Counter())[len(key)] += 1
        self._evicted[prefix] = None
        self._evicted.move_to_end(prefix)
        if len(self._evicted) > self._capacity:
            self._forget(*self._evicted.popitem(last=False)[0])

    def knows(self, namespace: str, key: bytes) -> bool:
        """Whether something that ``key`` begins with was evicted."""
        if not self._evicted:
            return False
        for length in range(min(len(key), _SHORT * TOKEN_BYTES), 0, -TOKEN_BYTES):
            beginning = namespace, key[:length]
            lengths = self._lengths.get(beginning)
            if lengths is None:
                continue
            hashed, end = _hash(b""), 0
            for size in sorted(size for size in lengths if size <= len(key)):
                hashed.update(key[end:size])
                end = size
                if (beginning, size, hashed.digest()) in self._evicted:
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
