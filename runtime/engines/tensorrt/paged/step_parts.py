"""A step as the parts that fit the engine's profiles, in the order in which they run.

Rows with deferred states go to the last part, with every other row that is as short: a captured step has room for all
of them, and what it stores for ``advance`` must not be overwritten. Longer rows run before them. A part has at most as
many logits as the engine gives at once: beyond that, rows continue in the next part, as in chunks of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs


@dataclass(frozen=True, eq=False)
class StepPart:
    """``inputs``: the part as a step of its own. rows: indices of its rows in the whole step.

    tokens, logits: indices of its tokens in the whole step, and of its logits among those of the whole step.
    """

    inputs: PackedInputs
    rows: np.ndarray
    tokens: np.ndarray
    logits: np.ndarray


def step_parts(inputs: PackedInputs, row_tokens: int, most_logits: int) -> list[StepPart]:
    """The parts of ``inputs``; one, with ``inputs`` itself, where that fits.

    row_tokens: tokens of a row of a captured step, at most. most_logits: logits of a part, at most.
    """
    counts = np.diff(inputs.query_start_loc)
    short = counts <= row_tokens
    defers = inputs.deferred is not None and bool(inputs.deferred.any())
    if len(inputs.logits_indices) <= most_logits and (short.all() or not defers):
        every = (np.arange(n) for n in (len(counts), len(inputs.input_ids), len(inputs.logits_indices)))
        return [StepPart(inputs, *every)]
    last = short if defers or short.all() else np.zeros(len(counts), bool)
    parts = [_part(inputs, *piece) for piece in _pieces(inputs, np.flatnonzero(~last), most_logits)]
    if last.any():
        rows = np.flatnonzero(last)
        parts.append(_part(inputs, rows, inputs.query_start_loc[rows], inputs.query_start_loc[rows + 1]))
    return parts


def _pieces(
    inputs: PackedInputs, rows: np.ndarray, most_logits: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``rows``, and the first and the end of the tokens of each, in pieces of at most ``most_logits`` logits."""
    has_logits = np.zeros(len(inputs.input_ids), bool)
    has_logits[inputs.logits_indices] = True
    chosen: list[tuple[int, int, int]] = []
    room = most_logits
    for row in rows.tolist():
        begin, end = inputs.query_start_loc[row : row + 2].tolist()
        while begin < end:
            with_logits = begin + np.flatnonzero(has_logits[begin:end])
            cut = end if len(with_logits) <= room else int(with_logits[room])
            if cut > begin:
                chosen.append((row, begin, cut))
            room -= int(has_logits[begin:cut].sum())
            if cut < end:
                yield _columns(chosen)
                chosen, room = [], most_logits
            begin = cut
    if chosen:
        yield _columns(chosen)


def _columns(chosen: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, begins, ends = np.array(chosen, np.int64).T
    return rows, begins, ends


def _part(inputs: PackedInputs, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> StepPart:
    """The tokens from ``begins`` to ``ends`` of each of ``rows``."""
    tokens = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
    index = np.full(len(inputs.input_ids), -1, np.int32)
    index[tokens] = np.arange(len(tokens))
    logits = np.flatnonzero(index[inputs.logits_indices] >= 0)
    left = inputs.query_start_loc[rows + 1] - ends
    part = replace(
        inputs,
        input_ids=inputs.input_ids[tokens],
        positions=inputs.positions[tokens],
        query_start_loc=np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int32),
        seq_lens=np.maximum(inputs.seq_lens[rows] - left, 0).astype(np.int32),
        block_table=inputs.block_table[rows],
        slot_mapping=inputs.slot_mapping[tokens],
        state_indices=inputs.state_indices[rows],
        logits_indices=index[inputs.logits_indices[logits]],
        deferred=None if inputs.deferred is None else inputs.deferred[rows],
    )
    return StepPart(part, rows, tokens, logits)
