"""Kernels of ``paged_attention``: rows of one token read their KV heads once, rows of more run as tiles of queries.

Wide heads have kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_decode import decode_launch, decode_sources
from hybridge.trt_plugins.kernels.ops.paged_attention_prefill import plan_prefill, prefill_sources
from hybridge.trt_plugins.kernels.ops.paged_attention_wide import plan_wide, wide_sources
from hybridge.trt_plugins.kernels.source import KernelSource


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``: decode, then prefill where a row may have several tokens.

    UnsupportedError for sizes or layouts outside of the kernels' limits.
    """
    paged = PagedCall.of(call)
    if paged.is_wide:
        return plan_wide(paged, device)
    decode = decode_launch(paged, device)
    prefill = plan_prefill(paged, device) if paged.has_prefill else CallPlan(())
    launches, workspace = (decode.launch, *prefill.launches), max(decode.workspace_bytes, prefill.workspace_bytes)
    return CallPlan(launches, workspace, decode.launch.source.label, decode.counter_bytes)


def sources() -> Iterator[KernelSource]:
    """A representative set of the variants that ``plan`` chooses from."""
    yield from decode_sources()
    yield from prefill_sources()
    yield from wide_sources()
