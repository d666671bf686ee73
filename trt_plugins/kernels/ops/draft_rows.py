"""Speculative calls as launches: one for rows of draft tokens, and those of packed rows for longer ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory, OpCall, PointerSource

# Values of the field ``part`` of Rows in common/rows.cuh.
_ALL_ROWS, _DRAFT_ROWS, LONGER_ROWS = 0, 1, 2
ACCEPTED = PointerSource(Memory.PACKED, 2)


def is_speculative(call: OpCall) -> bool:
    """Whether the rows of ``call`` keep a state for each of their draft tokens."""
    return call.packed is not None and call.packed.draft_slots > 0


def plan_drafts(
    call: OpCall, drafts: Callable[[OpCall], KernelLaunch], longer: Callable[[OpCall], CallPlan]
) -> CallPlan:
    """The launches of a speculative call.

    drafts: the launch for rows of at most as many tokens as they have slots, of the call as one of packed rows.
    longer: the plan for packed rows of any length, which here runs the longer ones; they have one slot each.
    UnsupportedError where the call has no state_indices.
    """
    packed = call.packed
    assert packed is not None and packed.draft_slots > 0
    if not packed.has_state_indices:
        raise UnsupportedError(f"{call.spec.name}: expected state_indices of draft tokens, found none; pass them")
    rows = replace(call, packed=replace(packed, draft_slots=0))
    has_longer = packed.max_row_tokens > packed.draft_slots
    first = _speculative(drafts(rows), packed.draft_slots, _DRAFT_ROWS if has_longer else _ALL_ROWS)
    if not has_longer:
        return CallPlan((first,), name=first.source.label)
    rest = longer(rows)
    launches = (first, *(_speculative(launch, packed.draft_slots, LONGER_ROWS) for launch in rest.launches))
    name = " + ".join(launch.source.entry for launch in launches)
    return CallPlan(launches, rest.workspace_bytes, name, rest.counter_bytes)


def _speculative(launch: KernelLaunch, draft_slots: int, part: int) -> KernelLaunch:
    """``launch`` over the rows of ``part`` alone, each of which begins with the state that was accepted."""
    params = type(launch.params).from_buffer_copy(launch.params)
    params.rows.draft_slots, params.rows.part = draft_slots, part
    return replace(launch, params=params, pointers={**launch.pointers, "rows.num_accepted": ACCEPTED})
