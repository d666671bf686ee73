"""Prompts of random words, of lengths around those at which servers cut prompts and cache blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator

_WORDS = (
    *("the", "of", "to", "in", "that", "was", "it", "for", "on", "with", "as", "they", "at", "be", "this", "from"),
    *("have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we", "there", "which", "said"),
    *("will", "each", "about", "how", "up", "out", "them", "many", "some", "would", "other", "into", "more", "two"),
    *("see", "time", "could", "make", "first", "people", "over", "down", "only", "way", "water", "long", "little"),
)
_LENGTHS = (3, 17, 63, 64, 65, 130, 257, 400, 600, 1100, 2100, 4200)


class PromptSource:
    """Prompts whose first words are unique within the source and across runs."""

    def __init__(self, run: str, seed: int, longest: int) -> None:
        """run: a text unique to this run."""
        self._run, self._random, self._made = run, random.Random(seed), 0
        self._lengths = [length for length in _LENGTHS if length < longest] + [longest]

    def words(self, count: int) -> str:
        """Words that continue a text."""
        return "".join(f" {word}" for word in self._random.choices(_WORDS, k=count))

    def prompt(self, words: int) -> str:
        """A new prompt of about ``words`` words."""
        self._made += 1
        return f"Note {self._made} of {self._run}:{self.words(words)}"

    def prompts(self, count: int) -> Iterator[str]:
        """``count`` new prompts, of each length in turn."""
        for index in range(count):
            yield self.prompt(self._lengths[index % len(self._lengths)])
