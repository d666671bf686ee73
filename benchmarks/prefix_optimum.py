"""The most tokens that any cache of so many states could have hit, knowing all requests beforehand.

Dynamic programming over what is held after each request. A request resumes at the deepest state held of its prompt, all
but the last token of it at most, and may leave states at any places that it computed. KV is held for nothing, requests
come one after the other: no cache with as many states, and these bytes for KV, can do better.

Only places where a later prompt could resume count. While all of these fit, holding all is best. Where one must go:
of several at the same depth, of which none extends another, the one that is wanted last (Belady: exchanging it for any
other loses nothing). Between depths, both ways are followed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hybridge.runtime.prefix_cache.token_key import common_length, key_from_tokens

# More sets than this at once: the trace is too irregular to be solved exactly.
MOST_SETS = 20_000

Tokens = Sequence[int]
# A place: number of tokens, and the first request that passes it, which tells it from others of that depth.
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
        """Tokens that a cache of ``states`` states hits at most. ValueError when there are too many ways."""
        best: dict[frozenset[Place], int] = {frozenset(): 0}
        for request in range(len(self._prompts)):
            after: dict[frozenset[Place], int] = {}
            for held, total in best.items():
                resumed = max((place[0] for place in held if self._serves(place, request)), default=0)
                passed = {place for place in self._places[request] if place[0] > resumed}
                wanted = {place for place in held | passed if self._next_use(place, request) is not None}
                for kept in self._choices(wanted, states, request):
                    after[kept] = max(after.get(kept, -1), total + resumed)
            if len(after) > MOST_SETS:
                raise ValueError(
                    f"expected at most {MOST_SETS} sets of states, found {len(after)}: ask for another size"
                )
            best = after
        return max(best.values())

    def _choices(self, wanted: set[Place], states: int, request: int) -> set[frozenset[Place]]:
        """What may be held of ``wanted``: everything, or one thing less in every way that could be best, and so on."""
        sets = {frozenset(wanted)}
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
        """Where later prompts could resume on the way of ``request``, each named by the first that passes it."""
        places = []
        for length in sorted({common for common in self._common[request][request + 1 :] if common}):
            first = next(i for i in range(request + 1) if i == request or self._common[i][request] >= length)
            places.append((length, first))
        return places

    def _all_uses(self) -> dict[Place, list[int]]:
        """Requests that could resume at each place."""
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
