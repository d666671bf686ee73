"""Where a prompt stops to leave a state."""

from __future__ import annotations

from runtime.blocks.needs import CacheNeeds
from runtime.prefix_cache.radix_tree import TreeMatch
from runtime.prefix_cache.settings import PrefixCacheSettings

# Tokens between states that are spread over a prompt: closer, each saves too little.
_LEAST_STEP = 64


def wanted_stops(settings: PrefixCacheSettings, needs: CacheNeeds, match: TreeMatch, prompt: int) -> list[int]:
    """Numbers of tokens, the nearest last, at which the states of a prompt of ``prompt`` tokens are wanted.

    The place where it leaves what the tree knows, found by the dry run that a match is: a second sequence came there,
    so a third may. Before its last token, where the same prompt can be resumed. And evenly, where nothing is known yet,
    or on a grid.
    """
    if not needs.state:
        return []
    asked = prompt - 1
    wanted = set()
    if settings.branch_points and match.known > match.length:
        wanted.add(match.known)
    if settings.prompt_end:
        wanted.add(asked)
    if settings.spread and 2 * match.known < asked:
        step = max(_LEAST_STEP, -(-asked // (settings.spread + 1)))
        wanted.update(range(step, asked, step))
    if settings.grid is not None:
        wanted.update(range(settings.grid, asked + 1, settings.grid))
    return sorted((stop for stop in wanted if stop - match.length >= settings.least_gain), reverse=True)
