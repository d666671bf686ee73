"""Kernels of ``gated_delta_rule``: one pass over the state for few tokens per row, chunks as matrices for more."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.ops.draft_rows import is_speculative, plan_drafts
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_8bit import sources as sources_8bit
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_channels import channels_sources, plan_channels
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_decode import decode_launch, decode_sources
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill import plan_prefill, prefill_sources
from hybridge.trt_plugins.kernels.source import KernelSource

# Rows of up to this many tokens are computed token by token, with one decay per head and with one per key channel.
LONGEST_WALK = 8
LONGEST_CHANNEL_WALK = 32
PRODUCT_SIZE = 16
WALK, CHUNKS = "walk", "chunks"
VARIANTS = (WALK, CHUNKS)
"""Rows of up to four times as many tokens walked; chunks for any rows of several tokens."""
_LONGER_WALK = 4


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    The sizes of heads are contiguous in every tensor, and heads too in g, beta and the states.
    """
    if is_speculative(call):
        return plan_drafts(
            call,
            lambda rows: decode_launch(DeltaCall.of(rows), device, drafts=True),
            lambda rows: plan(rows, device),
        )
    delta = DeltaCall.of(call)
    if delta.time > _longest_walk(delta) and _fits_products(delta):
        chunked = plan_channels(delta, device) if delta.channel_decay else plan_prefill(delta, device)
        if chunked is not None:
            return chunked
    launch = decode_launch(delta, device)
    return CallPlan((launch,), name=launch.source.label)


def _longest_walk(call: DeltaCall) -> int:
    """Tokens of a row up to which the call is walked."""
    measured = LONGEST_CHANNEL_WALK if call.channel_decay else LONGEST_WALK
    return {WALK: _LONGER_WALK * measured, CHUNKS: 1}.get(call.call.variant, measured)


def _fits_products(call: DeltaCall) -> bool:
    """Whether tensor cores' products divide a head; rows of other heads are walked, however long."""
    return call.key_size % PRODUCT_SIZE == 0 and call.value_size % PRODUCT_SIZE == 0


def sources() -> Iterator[KernelSource]:
    """A representative set of the variants that ``plan`` chooses from."""
    yield from decode_sources()
    yield from prefill_sources()
    yield from channels_sources()
    yield from sources_8bit()
