"""Where the last tokens of a sequence occurred before."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# Latest tokens of which the index remembers whether it foresaw them.
_MOST_FORESEEN = 64


class NgramIndex:
    """Every run of ``shortest`` to ``longest`` tokens of one growing sequence, with the place that followed its latest
    occurrence. The longer ones are entered when the shortest one has occurred before: until then a token costs one
    entry and one look-up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(shortest, longest + 1)
        self._after: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in self._lengths)
        # Tokens that the runs of each length have been taken from.
        self._known = [0] * len(self._lengths)
        self._foreseen = deque[bool](maxlen=_MOST_FORESEEN)

    def finds(self, tokens: Sequence[int]) -> bool:
        """Whether ``propose`` gives any token: ``tokens`` end with a run that occurred before."""
        self._learn(0, tokens)
        shortest = self._lengths[0]
        return len(tokens) > shortest and tuple(tokens[-shortest:]) in self._after[0]

    def foreseen(self, tokens: Sequence[int]) -> tuple[bool, ...]:
        """Whether each new token is the one that followed the latest occurrence of the shortest run before it.

        New are those since the call before, without those after runs that occurred for the first time. Those of the
        first call of any method are not new.
        """
        self._learn(0, tokens)
        found = tuple(self._foreseen)
        self._foreseen.clear()
        return found

    def propose(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """At most ``count`` tokens that followed the longest run that ``tokens`` end with, when it last occurred.

        ``tokens`` are those of the call before and more. Where the earlier occurrence reaches the end, what follows is
        taken from the proposal itself: a text that repeats itself is expected to continue that way.
        """
        if not self.finds(tokens):
            return ()
        end, longest = len(tokens), self._after[0][tuple(tokens[-self._lengths[0] :])]
        for index in range(1, len(self._lengths)):
            self._learn(index, tokens)
            place = self._after[index].get(tuple(tokens[-self._lengths[index] :]))
            if place is None:
                break
            longest = place
        found = list(tokens[longest : longest + count])
        while len(found) < count:
            found.append(found[longest + len(found) - end])
        return tuple(found)

    def _learn(self, index: int, tokens: Sequence[int]) -> None:
        """Add the runs of one length that a token follows: all but the one at the very end."""
        length, after, known = self._lengths[index], self._after[index], self._known[index]
        foresees = known > 0 and not index
        for place in range(max(known, length), len(tokens)):
            run = tuple(tokens[place - length : place])
            if foresees and run in after:
                self._foreseen.append(tokens[after[run]] == tokens[place])
            after[run] = place
        self._known[index] = len(tokens)
