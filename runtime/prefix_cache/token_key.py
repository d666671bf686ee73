"""Token sequences as bytes: slicing, hashing and comparing then run at the speed of memory.

A key is the tokens as little-endian 32-bit integers, ``TOKEN_BYTES`` each. Positions are counted in tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

TOKEN_BYTES = 4
_LARGEST = 2**31 - 1
# Length of the runs that a comparison first looks at as a whole.
_RUN = 64 * TOKEN_BYTES


def key_from_tokens(tokens: Sequence[int] | np.ndarray) -> bytes:
    """The key of ``tokens``; ValueError when one is negative or takes more than 31 bits."""
    given = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    try:
        key = struct.pack(f"<{len(given)}i", *given)  # three times as fast as NumPy's conversion of a list
        # The highest byte of a negative number is above 127.
        are_tokens = key[TOKEN_BYTES - 1 :: TOKEN_BYTES].isascii()
    except struct.error:
        are_tokens = False
    if not are_tokens:
        raise ValueError(f"expected token ids from 0 to {_LARGEST}, found {min(given)} to {max(given)}")
    return key


def tokens_from_key(key: bytes) -> np.ndarray:
    """The tokens [n] int32 of a key."""
    return np.frombuffer(key, "<i4")


def key_length(key: bytes) -> int:
    """Number of tokens."""
    return len(key) // TOKEN_BYTES


def cut(key: bytes, start: int, stop: int | None = None) -> bytes:
    """The key of tokens start..stop."""
    return key[start * TOKEN_BYTES : None if stop is None else stop * TOKEN_BYTES]


def common_length(edge: bytes, key: bytes, start: int) -> int:
    """Number of leading tokens of ``edge`` that equal ``key`` from position ``start`` on."""
    offset = start * TOKEN_BYTES
    if key.startswith(edge, offset):
        return len(edge) // TOKEN_BYTES
    length = min(len(edge), len(key) - offset)
    run = 0
    while run + _RUN <= length and edge[run : run + _RUN] == key[offset + run : offset + run + _RUN]:
        run += _RUN
    while run < length and edge[run : run + TOKEN_BYTES] == key[offset + run : offset + run + TOKEN_BYTES]:
        run += TOKEN_BYTES
    return run // TOKEN_BYTES
