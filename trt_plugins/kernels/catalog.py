"""The planner of every operator that has CUDA kernels."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import OPS, all_specs
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.spec import OpSpec

# Operator to the module with its ``plan(call, device)`` and ``sources()``.
_PLANNERS = {
    "causal_conv1d": "hybridge.trt_plugins.kernels.ops.causal_conv1d",
    "update_ssm_state": "hybridge.trt_plugins.kernels.ops.update_ssm_state",
    "mamba2_conv_scan": "hybridge.trt_plugins.kernels.ops.mamba2_conv_scan",
    "gated_delta_rule": "hybridge.trt_plugins.kernels.ops.gated_delta_rule",
    "selective_scan": "hybridge.trt_plugins.kernels.ops.selective_scan",
    "reshape_and_cache": "hybridge.trt_plugins.kernels.ops.reshape_and_cache",
    "paged_attention": "hybridge.trt_plugins.kernels.ops.paged_attention",
    "reshape_and_cache_fp8": "hybridge.trt_plugins.kernels.ops.reshape_and_cache_fp8",
    "paged_attention_fp8": "hybridge.trt_plugins.kernels.ops.paged_attention",
}

# Forms over states with rings, which are updated in place alone.
_OVER_RINGS = {
    "update_ssm_state_ring": "hybridge.trt_plugins.kernels.ops.state_ring",
    "gated_delta_rule_ring": "hybridge.trt_plugins.kernels.ops.state_ring",
}

# Forms over states of 8 bits: kernels for one token per row, and no plugins.
_OVER_8_BITS = {
    "update_ssm_state_8bit": "hybridge.trt_plugins.kernels.ops.update_ssm_state_8bit",
    "gated_delta_rule_8bit": "hybridge.trt_plugins.kernels.ops.gated_delta_rule_8bit",
}

# Kernels between operators, which have sources() but are none.
_FUSED = (
    "hybridge.trt_plugins.kernels.fused.activate",
    "hybridge.trt_plugins.kernels.fused.gather_rows",
    "hybridge.trt_plugins.kernels.fused.linear_decode",
    "hybridge.trt_plugins.kernels.fused.most_likely",
    "hybridge.trt_plugins.kernels.fused.rms_norm",
    "hybridge.trt_plugins.kernels.fused.routed_experts",
    "hybridge.trt_plugins.kernels.fused.sampling",
    "hybridge.trt_plugins.kernels.fused.tiled_experts",
    "hybridge.trt_plugins.kernels.fused.token_feeding",
    "hybridge.trt_plugins.kernels.fused.top_k_softmax",
    "hybridge.trt_plugins.kernels.fused.weight_tiles",
)


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The kernels that run ``call``; UnsupportedError where the operator or its sizes have none."""
    name = call.spec.name
    planner = _PLANNERS.get(name) or _OVER_RINGS.get(name) or _OVER_8_BITS.get(name)
    if planner is None:
        raise UnsupportedError(
            f"expected one of the operators with CUDA kernels ({', '.join(operators())}), found {name}"
        )
    return importlib.import_module(planner).plan(call, device)


def variants(name: str) -> tuple[str, ...]:
    """Algorithms of operator ``name`` that a call may ask for instead of the planner's choice."""
    found: tuple[str, ...] = getattr(importlib.import_module({**_PLANNERS, **_OVER_RINGS}[name]), "VARIANTS", ())
    return found


def operators() -> tuple[str, ...]:
    """Operators with CUDA kernels for every number of tokens."""
    return (*_PLANNERS, *_OVER_RINGS)


def dense_operators() -> tuple[str, ...]:
    """Operators with a dense form (version 1), not only one over pools, without those over states with rings."""
    return tuple(name for name in _PLANNERS if name in OPS)


def plugin_specs() -> tuple[OpSpec, ...]:
    """Every form of these operators, dense, packed and speculative: each has a plugin."""
    return tuple(spec for spec in all_specs() if spec.name in operators())


def sources() -> Iterator[KernelSource]:
    """A representative set of the variants that the planners choose from: every file, every type, every fast size."""
    for module in dict.fromkeys((*_PLANNERS.values(), *_OVER_RINGS.values(), *_FUSED)):
        yield from importlib.import_module(module).sources()
