"""Parameters and pointers that the kernels of ``update_ssm_state`` and ``selective_scan`` share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridge.trt_plugins.kernels.call import Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride, row_pointers

_INPUTS = ("x", "A", "B", "C", "D", "dt", "dt_bias", "state")


def state_space_pointers(call: OpCall) -> dict[str, PointerSource]:
    """Pointers of the operator's tensors and rows."""
    pointers = {name: PointerSource(Memory.INPUT, call.spec.input_index(name)) for name in _INPUTS}
    pointers |= {"y": PointerSource(Memory.OUTPUT, 0), "state_out": PointerSource(Memory.OUTPUT, 1)}
    return pointers | row_pointers(call, "rows.")


def set_strides_and_limits(params: Any, call: OpCall, strided: Iterable[tuple[str, TensorLayout, int]]) -> None:
    """Set the strides of B, C and the state, the time step's limits, and of ``strided`` the row and token strides.

    strided: name, layout and number of axes after the tokens.
    """
    for name, layout, trailing in strided:
        row, token = row_and_token_stride(call, layout, trailing)
        setattr(params, f"{name}_row", row)
        setattr(params, f"{name}_token", token)
    params.B_group, params.C_group = call.input("B").strides[-2], call.input("C").strides[-2]
    params.state_slot, params.state_out_slot = call.input("state").strides[0], call.outputs[1].strides[0]
    params.dt_min, params.dt_max = call.attributes["time_step_min"], call.attributes["time_step_max"]
