"""Random ids of requests and responses."""

from __future__ import annotations

import os
from collections.abc import Iterator

_BYTES, _IDS = 16, 256


def random_hex() -> str:
    """16 random bytes of the operating system, as 32 hexadecimal digits. Called in one thread.

    The bytes of many ids are read at once: a system call that releases Python's lock may wait long to get it back.
    """
    return next(_ids)


def _endless() -> Iterator[str]:
    while True:
        data = os.urandom(_BYTES * _IDS)
        for begin in range(0, len(data), _BYTES):
            yield data[begin : begin + _BYTES].hex()


_ids = _endless()
