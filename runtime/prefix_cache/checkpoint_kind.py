"""Why states are taken, and how often each reason was a good one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class CheckpointKind(IntEnum):
    """Where a state comes from.

    BRANCH: where prompts branch. PROMPT_END: before the last token of a prompt. SPREAD: on the way of a prompt that is
    new. EXPECTED: at a length at which other prompts branched. DECODE: in an answer. END: the end of a sequence.
    TURN: where a message of a chat ends, as its request says. PASSED: any of them whose uses a later state of the same
    sequence has taken over.
    """

    BRANCH = 0
    PROMPT_END = 1
    SPREAD = 2
    EXPECTED = 3
    DECODE = 4
    END = 5
    PASSED = 6
    TURN = 7


REUSE_RATES: Mapping[CheckpointKind, float] = {
    CheckpointKind.BRANCH: 1.0,
    CheckpointKind.PROMPT_END: 1 / 16,
    CheckpointKind.SPREAD: 1 / 4,
    CheckpointKind.EXPECTED: 1 / 2,
    CheckpointKind.DECODE: 1 / 32,
    CheckpointKind.END: 1 / 2,
    CheckpointKind.PASSED: 1 / 32,
    CheckpointKind.TURN: 1 / 2,
}
"""Expected number of uses of a state that has not been used yet."""
