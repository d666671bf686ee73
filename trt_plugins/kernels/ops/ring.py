"""Kernels of the recurrent operators whose states have rings (specs/ring.py)."""

from __future__ import annotations

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops import gated_delta_rule_decode, update_ssm_state
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.specs.ring import RINGS


def plan_ring(call: OpCall, device: DeviceTraits, gate: TensorLayout | None = None) -> CallPlan:
    """One launch for packed rows of at most one token, whose states have rings.

    A launch takes the operator's own inputs, then the tensors of the rings in the order of RINGS, their lengths
    [slots] int32, and the gate, if any: update_ssm_state multiplies y by SiLU of ``gate`` [tokens, heads * head_dim].
    The ring is changed where it is; the lengths are left to the caller. UnsupportedError for other operators and rows,
    and as the operator's own plan.
    """
    if call.spec.name not in RINGS or call.packed is None or call.packed.max_row_tokens > 1 or call.packed.draft_slots:
        raise UnsupportedError(
            f"{call.spec.name}: expected {' or '.join(RINGS)} with one token in each of packed rows, found another "
            "call; use the plain plan"
        )
    if call.spec.name == update_ssm_state.NAME:
        launch = update_ssm_state.ring_launch(call, device, gate)
    else:
        launch = gated_delta_rule_decode.ring_launch(DeltaCall.of(call), device)
    launch.params.most_added = launch.params.flushes_empty = 1
    return CallPlan((launch,), name=launch.source.label)
