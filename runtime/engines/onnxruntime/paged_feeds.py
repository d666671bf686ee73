"""A packed step as regular runs, and what the graph of each run reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridge.artifact import names
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape, decay_feeds, ragged_feeds
from hybridge.runtime.engines.onnxruntime.graph_form import ROW_STARTS
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes


@dataclass(frozen=True)
class PagedRun:
    """Rows of one step that run together, ``counts`` [rows] new tokens each, and their tokens, row by row.

    Either rows of one token each, or one row or, in neighbouring slots, several of any numbers of tokens, or
    ``is_ragged``, rows of a few tokens.
    """

    rows: np.ndarray
    tokens: np.ndarray
    counts: np.ndarray
    is_ragged: bool = False

    @cached_property
    def time(self) -> int:
        """Tokens of the longest row."""
        return int(self.counts.max())


def paged_runs(
    inputs: PackedInputs, alone: Collection[int] = (), together: Collection[int] = (), joins: bool = False
) -> Iterator[PagedRun]:
    """The rows ``together`` if they are several, all other rows of one token, then longer rows, and each that ``alone``
    names by itself; padding rows (seq_lens 0) are in no run.

    joins: other longer rows in neighbouring slots share a run, except those with checkpoints; else each has its own.
    """
    counts = inputs.query_start_loc[1:] - inputs.query_start_loc[:-1]
    others = inputs.seq_lens > 0
    if not alone and not together and len(inputs.input_ids) == len(counts) and others.all():
        yield PagedRun(np.arange(len(counts)), inputs.query_start_loc[:-1], counts)  # a step as most are
        return
    if len(together) > 1:
        others[list(together)] = False
        yield _run(inputs, np.array(sorted(together)), is_ragged=True)
    are_single = counts == 1
    are_single[list(alone)] = False
    single = np.flatnonzero(others & are_single)
    if single.size:
        yield _run(inputs, single)
    longer = others & ~are_single
    if joins:
        plain = longer & ~_has_checkpoints(inputs)
        plain[list(alone)] = False
        for rows in _neighbours(inputs, np.flatnonzero(plain)):
            longer[rows] = False
            yield _run(inputs, rows)
    for row in np.flatnonzero(longer):
        yield _run(inputs, np.array([row]))


def _has_checkpoints(inputs: PackedInputs) -> np.ndarray:
    """Which rows have some."""
    tokens = np.empty(0, np.int32) if inputs.checkpoints is None else inputs.checkpoints[:, 0]
    return np.diff(np.searchsorted(tokens, inputs.query_start_loc)) > 0


def _neighbours(inputs: PackedInputs, rows: np.ndarray) -> list[np.ndarray]:
    """``rows`` in the order of their slots, divided where slots are between two; rows without slots are not."""
    slots = inputs.state_indices[rows]
    order = np.argsort(slots, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(slots[order]) > 1) + 1) if rows.size else []


def _run(inputs: PackedInputs, rows: np.ndarray, is_ragged: bool = False) -> PagedRun:
    starts, stops = inputs.query_start_loc[rows], inputs.query_start_loc[rows + 1]
    counts = (stops - starts).astype(np.int64)
    total = int(counts.sum())
    if total == len(rows):
        return PagedRun(rows, starts, counts, is_ragged)
    return PagedRun(rows, np.arange(total) + np.repeat(stops - np.cumsum(counts), counts), counts, is_ragged)


def by_slot(run: PagedRun, inputs: PackedInputs, num_slots: int) -> tuple[PagedRun, slice]:
    """``run`` with its rows in the order of their slots, and the slots from the first to the last.

    What has no slot counts as having slot ``num_slots``.
    """
    slots = inputs.state_indices[run.rows]
    slots = np.where(slots < 0, num_slots, slots)
    if not (slots[1:] < slots[:-1]).any():
        return run, slice(int(slots[0]), int(slots[-1]) + 1)
    order = np.argsort(slots, kind="stable")
    span = slice(int(slots[order[0]]), int(slots[order[-1]]) + 1)
    return _run(inputs, run.rows[order], run.is_ragged), span


def begun_blocks(inputs: PackedInputs, block_size: int) -> np.ndarray:
    """Blocks of which this step fills the first position but not the last: the rest must be cleared."""
    slots = inputs.slot_mapping[inputs.slot_mapping >= 0]
    blocks, offsets = np.divmod(slots, block_size)
    if not (offsets == 0).any():
        return blocks[:0]
    return np.setdiff1d(blocks[offsets == 0], blocks[offsets == block_size - 1])


def run_feeds(
    inputs: PackedInputs, run: PagedRun, shapes: Iterable[KvShape], sizes: PoolSizes, read: Collection[str]
) -> dict[str, np.ndarray]:
    """Everything that the graph of ``run`` may read but the pools and the logits' indices. ``read``: its inputs."""
    slots, bounds = inputs.state_indices[run.rows], np.zeros(len(run.rows) + 1, np.int32)
    run.counts.cumsum(out=bounds[1:])
    feeds = {
        names.INPUT_IDS: inputs.input_ids[run.tokens],
        names.POSITIONS: inputs.positions[run.tokens],
        names.STATE_INDICES: np.where(slots < 0, sizes.num_slots, slots).astype(np.int32),
        names.QUERY_START_LOC: bounds,
        ROW_STARTS: bounds,
    }
    if run.is_ragged:
        feeds |= ragged_feeds(run.counts) | decay_feeds(run.time)
    if names.SLOT_MAPPING in read:
        feeds[names.SLOT_MAPPING] = inputs.slot_mapping[run.tokens]
        feeds[names.BLOCK_TABLE], feeds[names.SEQ_LENS] = inputs.block_table[run.rows], inputs.seq_lens[run.rows]
    for shape in shapes:
        if shape.kv_indices in read and shape.kv_indices not in feeds:
            feeds[shape.kv_indices] = _kv_indices(inputs.slot_mapping[run.tokens], shape, sizes)
        if shape.blocks("key") in read:
            feeds |= _seen(inputs, run, shape, sizes, shape.bias in read)
    return feeds


def _kv_indices(slot_mapping: np.ndarray, shape: KvShape, sizes: PoolSizes) -> np.ndarray:
    """[parts * tokens * kv_heads, 4]: part, block, head, offset. What has no place goes to the last block."""
    kv_indices = np.empty((shape.parts, len(slot_mapping), shape.kv_heads, 4), np.int64)
    kv_indices[0, ..., 0], kv_indices[-1, ..., 0] = 0, shape.parts - 1
    kv_indices[..., 2] = np.arange(shape.kv_heads)
    blocks, offsets = np.divmod(slot_mapping, sizes.block_size)
    nowhere = slot_mapping < 0
    if nowhere.any():
        blocks[nowhere], offsets[nowhere] = sizes.num_blocks, 0
    kv_indices[..., 1], kv_indices[..., 3] = blocks[:, None], offsets[:, None]
    return kv_indices.reshape(-1, 4)


def _seen(
    inputs: PackedInputs, run: PagedRun, shape: KvShape, sizes: PoolSizes, with_bias: bool
) -> dict[str, np.ndarray]:
    """The blocks that each row sees, as rows of the pools, and what each token sees of them."""
    lengths, size = inputs.seq_lens[run.rows].astype(np.int64), sizes.block_size
    last, first = (lengths - 1) // size, np.zeros_like(lengths)
    if shape.window:
        first = np.maximum(lengths - run.counts - shape.window + 1, 0) // size
    columns = first[:, None] + np.arange((last - first).max() + 1)
    # Shorter rows repeat their last block, which has been written or cleared.
    blocks = inputs.block_table[run.rows[:, None], np.minimum(columns, last[:, None])].astype(np.int64)
    keys = blocks[:, None, :] * shape.kv_heads + np.arange(shape.kv_heads)[:, None]
    seen = (lengths - first * size).astype(np.int32)
    found = {
        **shape.block_feeds(keys, sizes.num_blocks),
        shape.seen: seen,
        shape.last_seen: seen - 1,
    }
    if with_bias:
        found[shape.bias] = _bias(run, shape, lengths, columns, size)
    return found


def _bias(run: PagedRun, shape: KvShape, lengths: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    """[rows, 1, time, s]: 0 where a token sees a place in the blocks ``columns`` [rows, m] of ``size`` tokens."""
    if shape.window:
        position = (columns[:, :, None] * size + np.arange(size)).reshape(len(lengths), 1, -1)
    else:
        position = np.arange(columns.shape[1] * size)
    # What fills up shorter rows sees what their last token does.
    token = (lengths - run.counts)[:, None]
    if run.time > 1:
        token = token + np.minimum(np.arange(run.time), run.counts[:, None] - 1)
    token = token[:, :, None]
    visible = position <= token
    if shape.window:
        visible &= position > token - shape.window
    return np.where(visible, np.float32(0), np.float32(-np.inf))[:, None]
