"""Random numbers by position: a token's depend only on the seed and on its position in the answer."""

from __future__ import annotations

import secrets

import numpy as np

_MASK = (1 << 128) - 1
# Words per position: one Philox output block.
_WORDS = 4
# Positions generated at a time.
_POSITIONS = 64


class RandomWords:
    """Philox4x64-10 (Salmon et al. 2011) with ``key`` and counter position + 1: four 64-bit words per position.

    Word 0 samples a token, word 1 accepts or rejects a draft token, word 2 samples a draft token.
    """

    def __init__(self, seed: int | None) -> None:
        """``seed``: its lowest 128 bits are the key; None: a random key."""
        self.key = secrets.randbits(128) if seed is None else seed & _MASK
        self._words: list[int] = []
        self._first = 0

    def at(self, position: int, word: int) -> int:
        """Word ``word`` (0, 1 or 2) of ``position``: 0 to 2**64 - 1."""
        offset = position - self._first
        if not 0 <= offset < len(self._words) // _WORDS:
            self._first, offset = position, 0
            # The generator increments its counter before the first output.
            source = np.random.Philox(key=self.key, counter=position)
            self._words = source.random_raw(_WORDS * _POSITIONS).tolist()
        return self._words[offset * _WORDS + word]

    def uniform(self, position: int, word: int) -> float:
        """``at`` as a 53-bit number in [0, 1)."""
        return (self.at(position, word) >> 11) * 2.0**-53
