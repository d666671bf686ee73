"""Where a prompt stops to leave a state."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_tree import TreeMatch

# Tokens between states that are spread over a prompt: closer, each saves too little.
_LEAST_STEP = 64


def wanted_stops(
    settings: PrefixCacheSettings,
    needs: CacheNeeds,
    match: TreeMatch,
    prompt: int,
    expected: Sequence[int] = (),
    parted: int = 0,
) -> list[tuple[int, Kind]]:
    """Numbers of tokens, the nearest last, at which the states of a prompt of ``prompt`` tokens are wanted, and why.

    The place where it leaves what the tree knows, found by the dry run that a match is, or earlier prompts, which is
    after ``parted`` tokens: a second sequence came there, so a third may. Where the tree only ends, and earlier prompts
    went on, nobody parts. Before its last token, where the same prompt can be resumed. Where little is known: at the
    lengths ``expected``, at which other prompts parted, or else evenly. And on a grid.
    """
    if not needs.state:
        return []
    asked = prompt - 1
    wanted: dict[int, Kind] = {}
    if settings.grid is not None:
        wanted.update(dict.fromkeys(range(settings.grid, asked + 1, settings.grid), Kind.GRID))
    if settings.spread and 2 * match.known < asked:
        likely = [length for length in expected if match.known < length < asked]
        step = max(_LEAST_STEP, -(-asked // (settings.spread + 1)))
        wanted.update(dict.fromkeys(() if likely else range(step, asked, step), Kind.SPREAD))
        wanted.update(dict.fromkeys(likely, Kind.EXPECTED))
    if settings.prompt_end:
        wanted[asked] = Kind.PROMPT_END
    for point in {parted} if match.ends and parted > match.known else {match.known, parted}:
        if settings.branch_points and point > match.length:
            wanted[point] = Kind.BRANCH
    enough = match.length + settings.least_gain
    return sorted((item for item in wanted.items() if item[0] >= enough), reverse=True)
