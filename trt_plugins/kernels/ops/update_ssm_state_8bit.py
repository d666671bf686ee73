"""Experimental: one token of ``update_ssm_state`` with a state of 8 bits, a quarter of the memory that float32 moves.

A row of the state (one of head_dim) is int8 or e4m3 times one float32: its largest magnitude over that of the type, 127
or 448, chosen anew after every token (``trt_plugins.reference.quantized_state``). The new value is computed, and y read
from it, in float32 before it is rounded to nearest even. No exported graph holds such a state yet.
"""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.rows import token_count
from hybridge.trt_plugins.kernels.ops.update_ssm_state import SCALE, decode_launch


def plan_8bit(call: OpCall, device: DeviceTraits) -> CallPlan:
    """One launch for ``call``, whose state and state_out are both int8 or both uint8, which are the bytes of e4m3.

    In addition to the operator's own tensors a launch takes the scales as one more input and one more output: float32
    [slots, heads, head_dim], contiguous, in place or not. UnsupportedError for more than one token per row, and as the
    operator's own plan.
    """
    found = {call.input("state").dtype, call.outputs[1].dtype}
    if found not in ({DType.INT8}, {DType.UINT8}) or token_count(call) > 1:
        raise UnsupportedError(
            f"{call.spec.name}: expected a state of int8 or of e4m3 (as uint8) and one token per row, found "
            f"{', '.join(sorted(dtype.value for dtype in found))} and {token_count(call)} tokens; use the plain plan"
        )
    scale = TensorLayout.contiguous(DType.FLOAT32, call.input("state").shape[:3])
    assert len(call.inputs) == SCALE
    launch = decode_launch(replace(call, inputs=(*call.inputs, scale), outputs=(*call.outputs, scale)), device)
    return CallPlan((launch,), name=launch.source.label)
