"""Dense cases as speculative calls: a poisoned pool, slots in random order, what each of them must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridge.trt_plugins.catalog import SPECULATIVE_OPS
from hybridge.trt_plugins.specs.packed import is_pool
from tests.ops.packed_calls import FREE_SLOTS, PackedCall, packed_call

DRAFTS = 5
# Rows of as many tokens as slots, of one, none, fewer and more; then one that keeps its last state alone.
LENGTHS = (5, 1, 0, 3, 66, 4)
# Of each row's previous call; what lies outside of 1 to DRAFTS is clamped.
ACCEPTED = (2, 1, 3, 0, 5, 4)


@dataclass(frozen=True)
class SpeculativeCall:
    """rows: the tokens. reads: slot of each row's first state; writes: its slot after each token, -1: nowhere."""

    rows: PackedCall
    arrays: dict[str, np.ndarray | None]
    reads: list[int]
    writes: list[list[int]]


def speculative_call(op: str, case: Any, seed: int = 7) -> SpeculativeCall:
    """``case``, of rows of LENGTHS, as a call of the speculative operator; the last row but one is a padding row."""
    packed, rows = packed_call(op, case), len(LENGTHS)
    order = np.random.default_rng(seed).permutation(rows * DRAFTS + FREE_SLOTS)
    table = order[: rows * DRAFTS].reshape(rows, DRAFTS).astype(np.int32)
    table[3, 1] = -1
    table[-1, np.arange(DRAFTS) != LENGTHS[-1] - 1] = -1
    reads = [int(table[row, min(max(n, 1), DRAFTS) - 1]) for row, n in enumerate(ACCEPTED)]
    writes = [[-1] * (n - 1) + [reads[row]] if n > DRAFTS else table[row, :n].tolist() for row, n in enumerate(LENGTHS)]
    padding = np.full((1, DRAFTS), -1, np.int32)
    given = {
        **packed.arrays,
        "state_indices": np.concatenate([table[:-1], padding, table[-1:]]),
        "num_accepted_tokens": np.array([*ACCEPTED[:-1], 1, ACCEPTED[-1]], np.int32),
    }
    for tensor in SPECULATIVE_OPS[op].inputs:
        if is_pool(tensor):
            states = getattr(case, tensor.name)
            pool = np.full((len(order), *states.shape[1:]), np.nan)
            pool[reads] = states
            given[tensor.name] = pool
    arrays = {tensor.name: given[tensor.name] for tensor in SPECULATIVE_OPS[op].inputs}
    return SpeculativeCall(packed, arrays, reads, writes)


def pools_after(
    call: SpeculativeCall, case: Any, pools: Mapping[str, np.ndarray], loop: Callable[[Any], tuple[np.ndarray, ...]]
) -> list[np.ndarray]:
    """What ``pools`` become, in their order: ``loop`` (y and states of a case) is run up to every token."""
    after = {name: pool.copy() for name, pool in pools.items()}
    for count in range(1, max(LENGTHS) + 1):
        written = [(row, slots[count - 1]) for row, slots in enumerate(call.writes) if len(slots) >= count]
        stored = [(row, slot) for row, slot in written if slot >= 0]
        if not stored:
            continue
        _, *states = loop(replace(case, context_lengths=np.minimum(case.context_lengths, count)))
        for pool, state in zip(after.values(), states, strict=True):
            for row, slot in stored:
                pool[slot] = state[row]
    return list(after.values())
