"""State slots of a step in which some rows have draft tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.engines.candidates import with_candidates
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.scheduler import PlannedRow


def with_draft_slots(inputs: PackedInputs, rows: Sequence[PlannedRow], columns: int) -> PackedInputs:
    """``inputs`` of ``rows`` with ``columns`` slots a row.

    A row with draft tokens starts from the state in its own slot and writes the state after its own token there; the
    state after each draft token goes to the slot of that token.
    """
    found = with_candidates(inputs, columns)
    assert found.num_accepted_tokens is not None
    for index, row in enumerate(rows):
        if row.draft_tokens:
            found.state_indices[index] = -1
            found.state_indices[index, : row.new_tokens] = (row.slot, *row.draft_slots)
            found.num_accepted_tokens[index] = 1
    return found
