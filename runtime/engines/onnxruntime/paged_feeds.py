"""A packed step as regular runs, and what the graph of each run reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from artifact import names
from runtime.engines.onnxruntime.paged_attention import KvShape
from runtime.engines.paged import PackedInputs, PoolSizes


@dataclass(frozen=True)
class PagedRun:
    """Rows of one step that run together, ``time`` new tokens each, and their tokens in the step's order.

    Either one row, or rows of one token each.
    """

    rows: np.ndarray
    tokens: np.ndarray
    time: int


def paged_runs(inputs: PackedInputs, alone: Collection[int] = ()) -> Iterator[PagedRun]:
    """All rows of one token together, then each longer row alone, and so those that ``alone`` names; padding rows
    (seq_lens 0) are in no run.

    A longer row shares no run: its tokens alone keep the processor busy while the weights are read.
    """
    starts, counts = inputs.query_start_loc[:-1], np.diff(inputs.query_start_loc)
    live = inputs.seq_lens > 0
    together = counts == 1
    together[list(alone)] = False
    single = np.flatnonzero(live & together)
    if single.size:
        yield PagedRun(single, starts[single], 1)
    for row in np.flatnonzero(live & ~together):
        start, count = int(starts[row]), int(counts[row])
        yield PagedRun(np.array([row]), np.arange(start, start + count), count)


def by_slot(run: PagedRun, inputs: PackedInputs, num_slots: int) -> tuple[PagedRun, slice]:
    """``run`` with its rows in the order of their slots, and the slots from the first to the last.

    What has no slot counts as having slot ``num_slots``.
    """
    slots = inputs.state_indices[run.rows]
    slots = np.where(slots < 0, num_slots, slots)
    order = np.argsort(slots, kind="stable")
    span = slice(int(slots[order[0]]), int(slots[order[-1]]) + 1)
    if run.time > 1:
        return run, span
    return PagedRun(run.rows[order], run.tokens[order], run.time), span


def begun_blocks(inputs: PackedInputs, block_size: int) -> np.ndarray:
    """Blocks whose first place this step fills, but not the last: what else they hold has to be cleared."""
    slots = inputs.slot_mapping[inputs.slot_mapping >= 0]
    blocks, offsets = np.divmod(slots, block_size)
    return np.setdiff1d(blocks[offsets == 0], blocks[offsets == block_size - 1])


def run_feeds(
    inputs: PackedInputs, run: PagedRun, shapes: Iterable[KvShape], sizes: PoolSizes
) -> dict[str, np.ndarray]:
    """Everything that the graph of ``run`` may read but the pools and the logits' indices."""
    slots = inputs.state_indices[run.rows]
    feeds = {
        names.INPUT_IDS: inputs.input_ids[run.tokens],
        names.POSITIONS: inputs.positions[run.tokens],
        names.STATE_INDICES: np.where(slots < 0, sizes.num_slots, slots).astype(np.int32),
        names.NUM_ACCEPTED_TOKENS: np.ones(len(slots), np.int32),
        names.QUERY_START_LOC: np.arange(len(run.rows) + 1, dtype=np.int32) * run.time,
    }
    for shape in shapes:
        if shape.places not in feeds:
            feeds[shape.places] = _places(inputs.slot_mapping[run.tokens], shape.kv_heads, sizes)
        feeds |= _seen(inputs, run, shape, sizes)
    return feeds


def _places(slot_mapping: np.ndarray, kv_heads: int, sizes: PoolSizes) -> np.ndarray:
    """[2 * tokens * kv_heads, 4]: keys or values, block, head, offset. What has no place goes to the last block."""
    nowhere = slot_mapping < 0
    places = np.empty((2, len(slot_mapping), kv_heads, 4), np.int64)
    places[..., 0] = np.arange(2)[:, None, None]
    places[..., 1] = np.where(nowhere, sizes.num_blocks, slot_mapping // sizes.block_size)[:, None]
    places[..., 2] = np.arange(kv_heads)
    places[..., 3] = np.where(nowhere, 0, slot_mapping % sizes.block_size)[:, None]
    return places.reshape(-1, 4)


def _seen(inputs: PackedInputs, run: PagedRun, shape: KvShape, sizes: PoolSizes) -> dict[str, np.ndarray]:
    """The blocks that each row sees, as rows of the pools, and what each token sees of them."""
    lengths, size = inputs.seq_lens[run.rows].astype(np.int64), sizes.block_size
    first = np.zeros_like(lengths)
    if shape.window:
        first = np.maximum(lengths - run.time - shape.window + 1, 0) // size
    last = (lengths - 1) // size
    columns = first[:, None] + np.arange((last - first).max() + 1)
    # Shorter rows repeat their last block: what lies there has been written or cleared.
    table = inputs.block_table[run.rows]
    blocks = np.take_along_axis(table, np.minimum(columns, last[:, None]), axis=1).astype(np.int64)
    keys = blocks[:, None, :] * shape.kv_heads + np.arange(shape.kv_heads)[:, None]
    position = (columns[:, :, None] * size + np.arange(size)).reshape(len(lengths), 1, -1)
    token = (lengths[:, None] - run.time + np.arange(run.time))[:, :, None]
    visible = position <= token
    if shape.window:
        visible &= position > token - shape.window
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))  # [rows, time, s], one of the first two being 1
    return {
        shape.blocks("key"): keys,
        shape.blocks("value"): keys + (sizes.num_blocks + 1) * shape.kv_heads,
        shape.bias: bias[:, None],
    }
