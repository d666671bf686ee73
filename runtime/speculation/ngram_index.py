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
        self._shortest, self._after_shortest = shortest, self._after[0]
        # Number of tokens with which the next call of ``finds`` needs to learn nothing first.
        self._next = -1

    def finds(self, tokens: Sequence[int]) -> bool:
        """Whether ``propose`` gives any token: ``tokens`` end with a run that occurred before.

        If they do not, the run is entered before the token that will follow it is known. A call for each new token is
        the work of most steps, so it does no more than this.
        """
        end = len(tokens)
        if end != self._next:
            self._learn(0, tokens)
        self._next = end + 1
        return end >= self._shortest and self._after_shortest.setdefault(tuple(tokens[-self._shortest :]), end) < end

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
        self._learn(0, tokens)
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
        """Add the runs of one length that a token follows: all but the one at the very end.

        A run that ``finds`` has entered already, for this very place, occurred for the first time.
        """
        length, after, known = self._lengths[index], self._after[index], self._known[index]
        foresees = known > 0 and not index
        for place in range(max(known, length), len(tokens)):
            run = tuple(tokens[place - length : place])
            before = after.get(run, place)
            if foresees and before < place:
                self._foreseen.append(tokens[before] == tokens[place])
            after[run] = place
        self._known[index] = len(tokens)
