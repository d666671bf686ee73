"""The algorithms of a plugin that TensorRT may choose between, by number: TensorRT calls them tactics.

Tactic 1 is the planner's choice, and the one where TensorRT times nothing and asks for 0. The others are variants of
the operator's kernels, each with the planner's choice where it cannot run a call. All give results that are right and
the same in every run, though not the same bits as one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.trt_plugins.plugins.calls import CallRange, Planner, kernels_of

PLANNERS_CHOICE = 1


def tactics(
    calls: CallRange, capabilities: tuple[str, ...], planner: Planner, variants: Sequence[str]
) -> dict[int, CallRange]:
    """The tactics for ``calls``, the planner's choice first; only that one where all would run the same."""
    chosen = kernels_of(calls, capabilities, planner)
    found = {PLANNERS_CHOICE: calls}
    for tactic, variant in enumerate(variants, PLANNERS_CHOICE + 1):
        changed = replace(calls, variant=variant)
        try:
            if kernels_of(changed, capabilities, planner) != chosen:
                found[tactic] = changed
        except UnsupportedError:
            continue
    return found


def variant_of(tactic: int, variants: Sequence[str]) -> str:
    """The variant of ``tactic``, "" for the planner's choice; EngineError for a number that was never offered."""
    most = PLANNERS_CHOICE + len(variants)
    if not 0 <= tactic <= most:
        raise EngineError(f"expected a tactic from 0 to {most}, found {tactic}: build the engine again")
    return variants[tactic - PLANNERS_CHOICE - 1] if tactic > PLANNERS_CHOICE else ""
