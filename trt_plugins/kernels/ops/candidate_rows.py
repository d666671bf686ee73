"""Speculative calls as launches: one for rows of candidate tokens, and those of packed rows for longer ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory, OpCall, PointerSource

# Values of the field ``part`` of Rows in common/rows.cuh.
_ALL_ROWS, _CANDIDATE_ROWS, _LONGER_ROWS = 0, 1, 2
_ACCEPTED = PointerSource(Memory.PACKED, 2)


def is_speculative(call: OpCall) -> bool:
    """Whether the rows of ``call`` keep a state for each of their candidate tokens."""
    return call.packed is not None and call.packed.candidates > 0


def plan_candidates(
    call: OpCall, candidates: Callable[[OpCall], KernelLaunch], longer: Callable[[OpCall], CallPlan]
) -> CallPlan:
    """The launches of a speculative call.

    candidates: the launch for rows of at most as many tokens as they have slots, of the call as one of packed rows.
    longer: the plan for packed rows of any length, which here runs the longer ones; they have one slot each.
    UnsupportedError where the call has no state_indices.
    """
    packed = call.packed
    assert packed is not None and packed.candidates > 0
    if not packed.has_state_indices:
        raise UnsupportedError(f"{call.spec.name}: expected state_indices of candidate tokens, found none; pass them")
    rows = replace(call, packed=replace(packed, candidates=0))
    has_longer = packed.max_row_tokens > packed.candidates
    first = _speculative(candidates(rows), packed.candidates, _CANDIDATE_ROWS if has_longer else _ALL_ROWS)
    if not has_longer:
        return CallPlan((first,), name=first.source.label)
    rest = longer(rows)
    launches = (first, *(_speculative(launch, packed.candidates, _LONGER_ROWS) for launch in rest.launches))
    name = " + ".join(launch.source.entry for launch in launches)
    return CallPlan(launches, rest.workspace_bytes, name, rest.counter_bytes)


def _speculative(launch: KernelLaunch, candidates: int, part: int) -> KernelLaunch:
    """``launch`` over the rows of ``part`` alone, each of which begins with the state that was accepted."""
    params = type(launch.params).from_buffer_copy(launch.params)
    params.rows.candidates, params.rows.part = candidates, part
    return replace(launch, params=params, pointers={**launch.pointers, "rows.num_accepted": _ACCEPTED})
