"""The shapes that packed steps are padded to on a GPU, so that few of them are distinct."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.held_inputs import HeldInputs
from hybridge.runtime.engines.torch.packed_buffers import StepSize
from hybridge.runtime.engines.torch.packed_step import StepShape
from hybridge.runtime.engines.torch.paged_decode import padded_blocks, padded_rows

# Rows of one token, wanted logits and tokens of rows with candidates are a multiple of this.
_STEP = 8
# Bounds of the tokens of a row are powers of two from here on.
_LEAST_LONGEST = 64


def own_shape(inputs: PackedInputs, candidates: int) -> tuple[StepShape, tuple[int, int]]:
    """Without padding. Beside it: how many rows of one token come first, and how many rows are put behind these."""
    rows, blocks = inputs.block_table.shape
    size = StepSize(len(inputs.input_ids), rows, blocks, len(inputs.logits_indices), *_held(inputs))
    singles, longest = _counted(inputs, candidates)
    return StepShape(size, singles, longest, candidates), (singles, 0)


def padded_shape(inputs: PackedInputs, candidates: int, block_size: int) -> tuple[StepShape, tuple[int, int]]:
    """As ``own_shape``, padded: rows of one token to a multiple of 8, the other ones to a power of two."""
    rows, blocks = inputs.block_table.shape
    singles, longest = _counted(inputs, candidates)
    split = multiple(singles, _STEP)
    others = 0 if singles == rows else 1 << (rows - singles - 1).bit_length()
    logits = multiple(max(1, len(inputs.logits_indices)), _STEP)
    held, chooses = _held(inputs)
    tokens = padded_tokens(len(inputs.input_ids))
    kept = multiple(held, _STEP) if chooses else tokens if held else 0
    size = StepSize(tokens, split + others, padded_blocks(blocks, block_size), logits, kept, chooses)
    return StepShape(size, split, longest, candidates), (singles, split - singles)


def candidate_shape(inputs: PackedInputs, candidates: int, most_rows: int, block_size: int) -> StepShape:
    """Of a step whose rows have at most ``candidates`` tokens behind their own."""
    rows, tokens = padded_rows(len(inputs.seq_lens), most_rows), len(inputs.input_ids)
    holds = _held(inputs)[0] > 0
    # Held rows leave their last slot to the state that they begin with.
    most = rows * candidates if holds else rows * (1 + candidates)
    tokens = min(max(tokens, most), multiple(tokens, _STEP))
    kept = tokens if holds else 0
    size = StepSize(tokens, rows, padded_blocks(inputs.block_table.shape[1], block_size), tokens, kept)
    return StepShape(size, 0, 1 + candidates, candidates)


def padded_tokens(tokens: int) -> int:
    """Tokens that a step of ``tokens`` is padded to: by at most an eighth, or 16."""
    return multiple(tokens, max(16, 1 << max(0, tokens.bit_length() - 4)))


def multiple(count: int, step: int) -> int:
    """The least multiple of ``step`` that is no less than ``count``."""
    return -(-count // step) * step


def _counted(inputs: PackedInputs, candidates: int) -> tuple[int, int]:
    """Rows of one token that come first, and a bound of the tokens of a row."""
    counts, few = np.diff(inputs.query_start_loc), 1 + candidates
    longer = np.flatnonzero(counts != 1)
    singles = int(longer[0]) if longer.size else len(counts)
    longest = max(few, int(counts.max()))
    if longest > few:
        longest = max(_LEAST_LONGEST, 1 << (longest - 1).bit_length())
    # With candidates, one call of a recurrent operator is for all rows.
    return 0 if candidates else singles, longest


def _held(inputs: PackedInputs) -> tuple[int, bool]:
    """Tokens whose inputs a step keeps, 0 where it holds no states; whether they are not simply all."""
    if not isinstance(inputs, HeldInputs):
        return 0, False
    return (len(inputs.input_ids), False) if inputs.held_tokens is None else (len(inputs.held_tokens), True)
