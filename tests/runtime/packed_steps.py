"""Packed steps of sequences that have one block and one slot each."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs


@dataclass(eq=False)
class Row:
    """A sequence of ``tokens`` in the pools; -1: the model has no blocks, or no slots."""

    block: int
    slot: int
    tokens: list[int]


def packed_step(
    rows: Sequence[Row], new: Sequence[Sequence[int]], with_logits: Sequence[Collection[int]], block_size: int
) -> PackedInputs:
    """Feed ``new`` tokens of each row; ``with_logits``: the positions among them whose logits are requested."""
    counts = [len(ids) for ids in new]
    bounds = np.cumsum([0, *counts])
    positions = np.concatenate([len(row.tokens) + np.arange(n) for row, n in zip(rows, counts, strict=True)])
    blocks = np.repeat([row.block for row in rows], counts)
    indices = [int(begin) + place for begin, each in zip(bounds, with_logits, strict=False) for place in sorted(each)]
    return PackedInputs(
        np.concatenate([np.array(ids, np.int64) for ids in new]),
        positions.astype(np.int64),
        bounds.astype(np.int32),
        np.array([len(row.tokens) + n for row, n in zip(rows, counts, strict=True)], np.int32),
        np.array([[row.block] for row in rows], np.int32),
        np.where(blocks < 0, -1, blocks * block_size + positions).astype(np.int32),
        np.array([row.slot for row in rows], np.int32),
        np.array(indices, np.int32),
    )
