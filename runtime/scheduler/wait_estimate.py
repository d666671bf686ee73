"""How long a request that arrives now would wait for a row."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from hybridge.runtime.scheduler.sequence import ScheduledSequence


def steps_until_free_row(running: Iterable[int], waiting: Sequence[int], rows: int) -> int:
    """Steps until a row is free for the next request, if each sequence takes as many steps as given.

    Waiting sequences take the rows in order, each the first that becomes free (list scheduling). Requests that end
    before their last token make it an upper bound.
    """
    free = sorted(running)
    free += [0] * (rows - len(free))
    heapq.heapify(free)
    for steps in waiting:
        heapq.heapreplace(free, free[0] + steps)
    return free[0]


def steps_left(sequence: ScheduledSequence, max_tokens: int) -> int:
    """Steps of a sequence until its last token: of its pending tokens, ``max_tokens`` at a time, and one for each new
    token."""
    request = sequence.request
    new_tokens = request.max_new_tokens - (len(sequence.tokens) - len(request.prompt_ids))
    return -(-max(0, sequence.pending - 1) // max_tokens) + max(1, new_tokens)
