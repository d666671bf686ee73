"""The body of every operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from trt_plugins.functions.causal_conv1d import causal_conv1d_function
from trt_plugins.functions.gated_delta_rule import gated_delta_rule_function
from trt_plugins.functions.mamba2_conv_scan import mamba2_conv_scan_function
from trt_plugins.functions.signature import Signature
from trt_plugins.functions.update_ssm_state import update_ssm_state_function

_BODIES: dict[str, Callable[[Signature], onnx.FunctionProto]] = {
    "causal_conv1d": causal_conv1d_function,
    "update_ssm_state": update_ssm_state_function,
    "mamba2_conv_scan": mamba2_conv_scan_function,
    "gated_delta_rule": gated_delta_rule_function,
}


def function_for(signature: Signature) -> onnx.FunctionProto:
    """The function of ``signature.op`` specialised on ``signature``."""
    return _BODIES[signature.op](signature)
