"""Positions of a prompt at which states are stored."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.token_tree import TreeMatch

# Evenly spaced states of a prompt, and their minimum distance in tokens: closer ones save too little.
_SPREAD, _LEAST_STEP = 3, 64


def checkpoint_positions(
    match: TreeMatch,
    prompt: int,
    branch_point: int = 0,
    expected: Sequence[int] = (),
    early: bool = True,
    given: Sequence[int] = (),
) -> list[tuple[int, CheckpointKind]]:
    """Numbers of tokens, the nearest last, after which states of a prompt of ``prompt`` tokens are stored, and why.

    Where the prompt branches off the tree, or off an earlier prompt after ``branch_point`` tokens: a third prompt may
    follow. With ``early``, also before its last token, where the same prompt resumes; and if less than half of it was
    cached, at the lengths ``expected``, at which other prompts branched, or else evenly, but not close before the last
    token.

    ``given``: where the request says that its turns end. The last of them replaces the state before the last token if
    it is close to it.
    """
    cacheable = prompt - 1
    positions: dict[int, CheckpointKind] = {}
    if early and 2 * match.known < cacheable:
        likely = [length for length in expected if match.known < length < cacheable]
        step = max(_LEAST_STEP, -(-cacheable // (_SPREAD + 1)))
        spread = range(step, cacheable - _LEAST_STEP + 1, step)
        positions.update(dict.fromkeys(() if likely else spread, CheckpointKind.SPREAD))
        positions.update(dict.fromkeys(likely, CheckpointKind.EXPECTED))
    turns = [length for length in given if 0 < length <= cacheable]
    if early and not any(cacheable - length < _LEAST_STEP for length in turns):
        positions[cacheable] = CheckpointKind.PROMPT_END
    positions.update(dict.fromkeys(turns, CheckpointKind.TURN))
    positions.update(dict.fromkeys((match.known, branch_point), CheckpointKind.BRANCH))
    return sorted((item for item in positions.items() if item[0] > match.length), reverse=True)
