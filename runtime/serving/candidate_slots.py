"""The slots of a step some of whose rows have candidate tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.engines.candidates import with_candidates
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.scheduler import PlannedRow


def with_candidate_slots(inputs: PackedInputs, rows: Sequence[PlannedRow], columns: int) -> PackedInputs:
    """``inputs`` of ``rows`` with ``columns`` slots a row: a row with candidates begins with the state in its own slot,
    and keeps that after its own token there; the states after its candidates go to slots that are theirs.
    """
    found = with_candidates(inputs, columns)
    assert found.num_accepted_tokens is not None
    for index, row in enumerate(rows):
        if row.candidates:
            found.state_indices[index] = -1
            found.state_indices[index, : row.new_tokens] = (row.slot, *row.candidate_slots)
            found.num_accepted_tokens[index] = 1
    return found
