"""The shapes that packed steps are padded to on a GPU, so that few of them are distinct."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs
from hybridge.runtime.engines.torch.packed_buffers import StepSize
from hybridge.runtime.engines.torch.packed_step import StepShape
from hybridge.runtime.engines.torch.paged_decode import padded_blocks, padded_rows

# Rows of one token, logits and tokens of rows with draft tokens are a multiple of this.
STEP = 8
# Bounds of the tokens of a row are powers of two from here on.
_LEAST_LONGEST = 64


def own_shape(inputs: PackedInputs, drafts: int) -> tuple[StepShape, tuple[int, int]]:
    """The step without padding, how many rows of one token come first, and how many rows follow these."""
    rows, blocks = inputs.block_table.shape
    size = StepSize(len(inputs.input_ids), rows, blocks, len(inputs.logits_indices), *_stored(inputs))
    singles, longest = _counted(inputs, drafts)
    return StepShape(size, singles, longest, drafts), (singles, 0)


def padded_shape(inputs: PackedInputs, drafts: int, block_size: int) -> tuple[StepShape, tuple[int, int]]:
    """As ``own_shape``, padded: rows of one token to a multiple of 8, the other ones to a power of two."""
    rows, blocks = inputs.block_table.shape
    singles, longest = _counted(inputs, drafts)
    split = multiple(singles, STEP)
    others = 0 if singles == rows else 1 << (rows - singles - 1).bit_length()
    logits = multiple(max(1, len(inputs.logits_indices)), STEP)
    stored, chooses = _stored(inputs)
    tokens = padded_tokens(len(inputs.input_ids))
    stored = multiple(stored, STEP) if chooses else tokens if stored else 0
    size = StepSize(tokens, split + others, padded_blocks(blocks, block_size), logits, stored, chooses)
    return StepShape(size, split, longest, drafts), (singles, split - singles)


def draft_shape(inputs: PackedInputs, drafts: int, most_rows: int, block_size: int) -> StepShape:
    """The shape of a step whose rows have at most ``drafts`` tokens."""
    rows, tokens = padded_rows(len(inputs.seq_lens), most_rows), len(inputs.input_ids)
    # Deferred rows leave their last slot to the state that they begin with.
    tokens = min(max(tokens, rows * drafts), multiple(tokens, STEP))
    size = StepSize(tokens, rows, padded_blocks(inputs.block_table.shape[1], block_size), tokens, tokens)
    return StepShape(size, 0, 1 + drafts, drafts)


def padded_tokens(tokens: int) -> int:
    """Tokens that a step of ``tokens`` is padded to: by at most an eighth, or 16."""
    return multiple(tokens, max(16, 1 << max(0, tokens.bit_length() - 4)))


def multiple(count: int, step: int) -> int:
    """The least multiple of ``step`` that is at least ``count``."""
    return -(-count // step) * step


def _counted(inputs: PackedInputs, drafts: int) -> tuple[int, int]:
    """Rows of one token that come first, and a bound of the tokens of a row."""
    counts, few = np.diff(inputs.query_start_loc), 1 + drafts
    longer = np.flatnonzero(counts != 1)
    singles = int(longer[0]) if longer.size else len(counts)
    longest = max(few, int(counts.max()))
    if longest > few:
        longest = max(_LEAST_LONGEST, 1 << (longest - 1).bit_length())
    # With draft tokens, one call of a recurrent operator is for all rows.
    return 0 if drafts else singles, longest


def _stored(inputs: PackedInputs) -> tuple[int, bool]:
    """Tokens whose inputs a step stores, 0 where it defers no states; whether they are not simply all."""
    if not isinstance(inputs, DraftInputs):
        return 0, False
    return (len(inputs.input_ids), False) if inputs.stored_tokens is None else (len(inputs.stored_tokens), True)
