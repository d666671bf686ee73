"""Many tokens per row of ``gated_delta_rule`` with a decay per key channel: chunks of 64 tokens on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill import (
    CHUNK,
    Chunked,
    chunk_slots,
    columns_launch,
    cut_sources,
    prefill_params,
    states_pointers,
)
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill_column_pairs import LARGEST_KEY
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill_groups import Groups, takes
from hybridge.trt_plugins.kernels.ops.rows import row_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource

FILE, ENTRY = "gated_delta_rule/prefill_channels.cu", "gated_delta_rule_prepare_channels"
_THREADS = 128
_BLOCKS = 4  # of 16 tokens of a chunk
_LARGEST_HOT_KEY = 128


def plan_channels(call: DeltaCall, device: DeviceTraits) -> CallPlan | None:
    """The two launches of ``call``; None where a chunk needs more shared memory than the device has."""
    variant = Chunked.of(call, device)
    if max(_shared_bytes(variant), variant.columns_bytes) > device.shared_bytes:
        return None
    chunks = -(-call.time // CHUNK)
    params = prefill_params(call, chunks)
    work = {"chunks": PointerSource(Memory.WORKSPACE)} | row_pointers(call.call, "rows.")
    panels = variant.aligned and takes(call, device)
    prepare = KernelLaunch(
        _source(variant, panels),
        (chunks, call.value_heads, call.rows),
        (_THREADS, 1, 1),
        params,
        call.inputs("q", "k", "g", "beta") | work,
        _shared_bytes(variant),
        overlap=device.is_hopper_or_later,
    )
    if panels:
        groups = Groups.of(call, device, variant.chunk_bytes)
        states = groups.launch(params, call, states_pointers(call, work))
    else:
        states = columns_launch(call, device, variant, params, work)
    workspace = chunk_slots(call, chunks) * call.value_heads * variant.chunk_bytes
    return CallPlan((prepare, states), workspace, states.source.label)


def channels_sources() -> Iterator[KernelSource]:
    """Every type and cut at the usual size, and other sizes in bfloat16."""
    base = Chunked(DType.BFLOAT16, DType.FLOAT32, 128, 128, True, True, 2, 2, channel_decay=True)
    for dtype in CUDA_TYPES:
        yield _source(replace(base, dtype=dtype))
        if dtype is not DType.FLOAT32:
            yield _source(replace(base, dtype=dtype), panels=True)
            yield from cut_sources(replace(base, dtype=dtype, stages=1))
        stages = 1 if dtype is DType.FLOAT32 else 2
        for state in {DType.FLOAT32, dtype}:
            yield from cut_sources(replace(base, dtype=dtype, state=state, stages=stages))
    yield _source(replace(base, key_size=64, value_size=64), panels=True)
    for key_size, value_size in ((64, 64), (96, 192), (192, 192), (16, 16)):
        for aligned in (True, False):
            sized = replace(base, key_size=key_size, value_size=value_size, aligned=aligned, normed=aligned)
            yield _source(sized)
            yield sized.columns_source()
            if key_size <= LARGEST_KEY:
                yield sized.pairs_source()


def _source(variant: Chunked, panels: bool = False) -> KernelSource:
    """panels: tiles are left for prefill_groups.cu."""
    defines = {
        "DATA_T": variant.dtype,
        "KEY_SIZE": variant.key_size,
        "NORMED": variant.normed,
        "ALIGNED": variant.aligned,
        "PANELS": panels,
    }
    hot = variant.is_hot and variant.key_size <= _LARGEST_HOT_KEY
    return KernelSource.of(FILE, ENTRY, defines, hot=hot)


def _shared_bytes(variant: Chunked) -> int:
    """Size of Shared in prefill_channels.cu."""
    aligned_tile = -(-variant.tile_bytes // 128) * 128
    square = 4 * CHUNK * (CHUNK + 4)
    floats = 3 * _BLOCKS * variant.key_size + 6 * CHUNK
    return -(-(max(2 * aligned_tile, square) + aligned_tile + 4 * floats) // 128) * 128
