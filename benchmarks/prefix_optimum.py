"""The offline optimum: the most tokens that a cache of a given size can hit when all requests are known beforehand.

Dynamic programming over the states in the cache after each request. A request resumes at the deepest cached state
within its prompt (the last token is always computed) and can store states at any positions that it computed. KV costs
nothing and requests arrive in sequence, so no cache with as many states can do better.

Only positions where a later prompt can resume count. While all of them fit, storing all is best. Otherwise one is
evicted: of several at the same depth, none of which extends another, the one whose next use is last (Belady: exchanging
it for any other loses nothing). Between depths, both choices are followed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hybridge.runtime.prefix_cache.token_key import common_length, key_from_tokens

# With more sets than this the trace is too irregular to be solved exactly.
MOST_SETS = 20_000

Tokens = Sequence[int]
# Number of tokens, and the first request that passes the position, which identifies it among others of that depth.
Place = tuple[int, int]


class Optimum:
    """``prompts`` and ``sequences`` (prompt and what was fed of the answer) in the order of arrival."""

    def __init__(self, prompts: Sequence[Tokens], sequences: Sequence[Tokens]) -> None:
        self._prompts = prompts
        count = len(prompts)
        # common[i][j]: tokens of sequence i that prompt j > i could resume with.
        made, asked = [key_from_tokens(each) for each in sequences], [key_from_tokens(each) for each in prompts]
        self._common = [
            [min(common_length(made[i], asked[j], 0), len(prompts[j]) - 1) if j > i else 0 for j in range(count)]
            for i in range(count)
        ]
        self._places = [self._places_of(i) for i in range(count)]
        self._uses = self._all_uses()

    def hits(self, states: int) -> int:
        """The most tokens that a cache of ``states`` states hits. ValueError when there are too many sets to follow."""
        best: dict[frozenset[Place], int] = {frozenset(): 0}
        for request in range(len(self._prompts)):
            after: dict[frozenset[Place], int] = {}
            for held, total in best.items():
                resumed = max((place[0] for place in held if self._serves(place, request)), default=0)
                passed = {place for place in self._places[request] if place[0] > resumed}
                useful = {place for place in held | passed if self._next_use(place, request) is not None}
                for kept in self._choices(useful, states, request):
                    after[kept] = max(after.get(kept, -1), total + resumed)
            if len(after) > MOST_SETS:
                raise ValueError(
                    f"expected at most {MOST_SETS} sets of states, found {len(after)}: ask for another size"
                )
            best = after
        return max(best.values())

    def _choices(self, useful: set[Place], states: int, request: int) -> set[frozenset[Place]]:
        """The sets to follow: all of ``useful`` if it fits, otherwise one state less in each way that could be best."""
        sets = {frozenset(useful)}
        while next(iter(sets)) and len(next(iter(sets))) > states:
            less = set()
            for held in sets:
                depths: dict[int, list[Place]] = {}
                for place in held:
                    depths.setdefault(place[0], []).append(place)
                for places in depths.values():
                    last = max(places, key=lambda place: (self._next_use(place, request) or 0, place))
                    less.add(held - {last})
            sets = less
        return sets

    def _places_of(self, request: int) -> list[Place]:
        """Where later prompts can resume within ``request``, each identified by the first request that passes it."""
        places = []
        for length in sorted({common for common in self._common[request][request + 1 :] if common}):
            first = next(i for i in range(request + 1) if i == request or self._common[i][request] >= length)
            places.append((length, first))
        return places

    def _all_uses(self) -> dict[Place, list[int]]:
        """Requests that can resume at each place."""
        places = {place for each in self._places for place in each}
        count = len(self._prompts)
        return {
            (length, first): [j for j in range(first + 1, count) if self._common[first][j] >= length]
            for length, first in places
        }

    def _serves(self, place: Place, request: int) -> bool:
        uses = self._uses[place]
        at = bisect_right(uses, request) - 1
        return at >= 0 and uses[at] == request

    def _next_use(self, place: Place, request: int) -> int | None:
        uses = self._uses[place]
        at = bisect_right(uses, request)
        return uses[at] if at < len(uses) else None
