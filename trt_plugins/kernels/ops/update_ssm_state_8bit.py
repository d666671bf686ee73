"""One token of ``update_ssm_state`` with states of 8 bits, a quarter of the memory that float32 moves.

The new value is computed, and y read from it, in float32 before it is rounded to nearest even
(``trt_plugins.reference.quantized_state``).
"""

from __future__ import annotations

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.ops.rows import token_count
from hybridge.trt_plugins.kernels.ops.update_ssm_state import decode_launch


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """One launch; UnsupportedError for more than one token per row, and as the plan for wider states."""
    if token_count(call) > 1:
        raise UnsupportedError(
            f"{call.spec.name}: expected one token per row, found {token_count(call)}: use a state of 16 or 32 bits"
        )
    launch = decode_launch(call, device)
    return CallPlan((launch,), name=launch.source.label)
