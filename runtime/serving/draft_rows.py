"""The draft model's memory of a sequence, and its step inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridge.runtime.engines.kv_slots import kv_slots
from hybridge.runtime.engines.packed_inputs import PackedInputs


@dataclass(eq=False)
class DraftedSequence:
    """Memory of one sequence in the pools of a draft model.

    length: tokens that the state in the first of ``slots`` has consumed; they are certain. drafted: draft
    tokens of the last proposal, consumed after those; after i of them the state is in slots[i]. blocks: of KV, for the
    positions from ``origin`` on, the first that was consumed.
    """

    slots: list[int]
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    drafted: list[int] = field(default_factory=list)
    origin: int = 0

    def rewind(self, tokens: Sequence[int]) -> None:
        """Move to the last state that has consumed only the sequence's own ``tokens``.

        At least the last of them remains to be consumed, because its logits are needed.
        """
        most = min(len(self.drafted), len(tokens) - 1 - self.length)
        right = next((i for i in range(most) if self.drafted[i] != tokens[self.length + i]), most)
        if self.slots and right:
            self.slots[0], self.slots[right] = self.slots[right], self.slots[0]
        self.length += right
        self.drafted.clear()


@dataclass(frozen=True)
class DraftRow:
    """Tokens to consume after the first ``start`` of a sequence, in ``slot`` (-1 where the model has no states)."""

    sequence: DraftedSequence
    tokens: Sequence[int]
    start: int
    slot: int


def draft_inputs(rows: Sequence[DraftRow], block_size: int) -> PackedInputs:
    """A step of ``rows``, with the logits of each last token. Their sequences have enough blocks."""
    counts = np.array([len(row.tokens) for row in rows])
    origins = np.array([row.sequence.origin for row in rows])
    starts = np.array([row.start for row in rows]) - origins
    bounds = np.concatenate(([0], np.cumsum(counts)))
    indices = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], counts)
    table = np.full((len(rows), max(1, *(len(row.sequence.blocks) for row in rows))), -1, np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row.sequence.blocks)] = row.sequence.blocks
    slot_mapping = kv_slots(table, np.repeat(np.arange(len(rows)), counts), indices, block_size)
    return PackedInputs(
        np.concatenate([np.array(row.tokens, np.int64) for row in rows]),
        indices + np.repeat(origins, counts),
        bounds.astype(np.int32),
        (starts + counts).astype(np.int32),
        table,
        slot_mapping,
        np.array([row.slot for row in rows], np.int32),
        (bounds[1:] - 1).astype(np.int32),
    )
