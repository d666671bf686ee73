"""Kernels of ``gated_delta_rule``: one pass over the state and the tokens of a row."""

from __future__ import annotations

from collections.abc import Iterator

from trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from trt_plugins.kernels.ops.gated_delta_rule_decode import decode_launch, decode_sources
from trt_plugins.kernels.source import KernelSource


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    The sizes of heads are contiguous in every tensor, and heads too in g, beta and the states.
    """
    delta = DeltaCall.of(call)
    launch = decode_launch(delta, device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """A representative set of the variants that ``plan`` chooses from."""
    yield from decode_sources()
