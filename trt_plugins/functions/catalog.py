"""The body of every operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from hybridge.trt_plugins.functions.attention_step import attention_step_function
from hybridge.trt_plugins.functions.cached_attention import cached_attention_function, cached_latent_attention_function
from hybridge.trt_plugins.functions.causal_conv1d import causal_conv1d_function
from hybridge.trt_plugins.functions.gated_delta_rule import gated_delta_rule_function
from hybridge.trt_plugins.functions.mamba2_conv_scan import mamba2_conv_scan_function
from hybridge.trt_plugins.functions.paged_attention import paged_attention_function
from hybridge.trt_plugins.functions.reshape_and_cache import reshape_and_cache_fp8_function, reshape_and_cache_function
from hybridge.trt_plugins.functions.rounded_experts import rounded_experts_function
from hybridge.trt_plugins.functions.routed_experts import routed_experts_function
from hybridge.trt_plugins.functions.selective_scan import selective_scan_function
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.update_ssm_state import update_ssm_state_function
from hybridge.trt_plugins.spec import AttributeValue, OpSpec
from hybridge.trt_plugins.specs.state_forms import base_name

_BODIES: dict[str, Callable[[Signature], onnx.FunctionProto]] = {
    "attention_step": attention_step_function,
    "cached_attention": cached_attention_function,
    "cached_latent_attention": cached_latent_attention_function,
    "causal_conv1d": causal_conv1d_function,
    "update_ssm_state": update_ssm_state_function,
    "mamba2_conv_scan": mamba2_conv_scan_function,
    "gated_delta_rule": gated_delta_rule_function,
    "selective_scan": selective_scan_function,
    "routed_experts": routed_experts_function,
    "rounded_experts": rounded_experts_function,
    "reshape_and_cache": reshape_and_cache_function,
    "paged_attention": paged_attention_function,
    "reshape_and_cache_fp8": reshape_and_cache_fp8_function,
    "paged_attention_fp8": paged_attention_function,
}

# Bodies that read attributes from their node: layers that differ in these share one body.
_BY_REFERENCE = frozenset(
    {"attention_step", "cached_attention", "cached_latent_attention", "paged_attention", "paged_attention_fp8"}
)


def specialised_attributes(spec: OpSpec, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """The ``attributes`` on which the body of ``spec`` depends; defaults for the others."""
    return spec.complete_attributes({} if spec.name in _BY_REFERENCE else attributes)


def function_for(signature: Signature) -> onnx.FunctionProto:
    """The function of ``signature.op`` specialised on ``signature``."""
    return _BODIES[base_name(signature.op)](signature)
