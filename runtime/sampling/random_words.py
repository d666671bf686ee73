"""Random numbers by position: those of a token depend on its seed and its place in the answer, on nothing else."""

from __future__ import annotations

import secrets

import numpy as np

_MASK = (1 << 128) - 1
# Words of a position, in the order of Philox.
_WORDS = 4
# Positions computed together.
_POSITIONS = 64


class RandomWords:
    """Philox4x64-10 (Salmon et al. 2011) with ``key`` and the counter position + 1: four words of 64 bits a position.

    Word 0 draws a token, word 1 accepts or rejects a draft token, word 2 draws a draft token.
    """

    def __init__(self, seed: int | None) -> None:
        """``seed``: its lowest 128 bits are the key; None: a key that no one has chosen."""
        self.key = secrets.randbits(128) if seed is None else seed & _MASK
        self._words: list[int] = []
        self._first = 0

    def at(self, position: int, word: int) -> int:
        """Word 0, 1 or 2 of ``position``, from 0 to 2**64 - 1."""
        place = position - self._first
        if not 0 <= place < len(self._words) // _WORDS:
            self._first, place = position, 0
            # The generator counts on before it gives its first words.
            source = np.random.Philox(key=self.key, counter=position)
            self._words = source.random_raw(_WORDS * _POSITIONS).tolist()
        return self._words[place * _WORDS + word]

    def uniform(self, position: int, word: int) -> float:
        """The same as a number in [0, 1), of 53 bits."""
        return (self.at(position, word) >> 11) * 2.0**-53
