"""The arrays of a step that holds states, in the form of one with candidate tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.engines.candidates import with_held_slots
from runtime.engines.paged import PackedInputs
from runtime.engines.torch.advance_step import HeldRows


@dataclass(frozen=True, eq=False)
class HeldInputs(PackedInputs):
    """kept_state_indices [rows, columns] int32: state_indices for the operators whose states are kept after each token.

    held_tokens int32: the tokens whose inputs are kept; None: all, as no row has more of them than slots.
    """

    kept_state_indices: np.ndarray | None = None
    held_tokens: np.ndarray | None = None


def held_inputs(inputs: PackedInputs, most: int, first_kept: int) -> tuple[HeldInputs, HeldRows]:
    """``inputs``, whose held rows have at most ``most`` tokens, and these rows.

    The state after token j of the i-th of them is kept in slot ``first_kept`` + i * most + j.
    """
    assert inputs.held is not None
    found = with_held_slots(inputs, most + 1)
    rows, counts = np.flatnonzero(inputs.held), np.diff(inputs.query_start_loc)
    own, begins = counts[rows], inputs.query_start_loc[rows]
    kept = found.state_indices.copy()
    tokens = np.arange(most, dtype=np.int32)
    slots = first_kept + np.arange(len(rows), dtype=np.int32)[:, None] * np.int32(most) + tokens
    kept[rows, :most] = np.where(tokens < own[:, None], slots, -1)
    chosen = None
    starts = begins
    if counts.max() > most + 1:
        chosen = np.concatenate([np.arange(begin, begin + n) for begin, n in zip(begins, own, strict=True)])
        starts = np.cumsum(own) - own
    fields = {name: getattr(found, name) for name in PackedInputs.__dataclass_fields__}
    step = HeldInputs(**fields, kept_state_indices=kept, held_tokens=chosen)
    return step, HeldRows(rows, starts, own, inputs.state_indices[rows])
