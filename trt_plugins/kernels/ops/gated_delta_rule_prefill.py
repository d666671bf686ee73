"""The kernels of ``gated_delta_rule`` for many tokens per row: chunks of 64 tokens as matrices on tensor cores.

The first computes what the tokens of a chunk are to each other, for all chunks at once; the second carries the states
through the chunks. docs/explanation/kernels/gated_delta_rule.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill_column_pairs import LARGEST_KEY, MOST_WARPS, ColumnPairs
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill_groups import Groups, groups_sources, takes
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_prefill_pairs import BLOCKS_AT_ONCE, Pairs, pairs_sources
from hybridge.trt_plugins.kernels.ops.rows import row_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

PREPARE_FILE, PREPARE_ENTRY = "gated_delta_rule/prefill_prepare.cu", "gated_delta_rule_prepare"
COLUMNS_FILE, COLUMNS_ENTRY = "gated_delta_rule/prefill_columns.cu", "gated_delta_rule_prefill"
CHUNK = 64
_WARP = 32
_PREPARE_THREADS = 128
_COUNTER_BYTES = 4
_ITEM_WORDS = 4 + 2 * 8  # Items and two of Item in prefill_prepare.cu
_COLUMNS_OF_WARP = 16
_DECAYS_BYTES = 8  # of the widest access to decays of key channels
_MOST_WARPS, _LEAST_WARPS = 8, 2
_LOADERS = 2
_LARGEST_HOT_KEY = 192
_TRIANGLE = 10 * 16 * 16  # elements of a lower triangle of 64 x 64 in blocks of 16 x 16


@dataclass(frozen=True)
class Chunked:
    """The macros of both kernels. warps: of a block of the second; stages: of its shared memory."""

    dtype: DType
    state: DType
    key_size: int
    value_size: int
    normed: bool
    aligned: bool
    warps: int
    stages: int
    channel_decay: bool = False

    @classmethod
    def of(cls, call: DeltaCall, device: DeviceTraits) -> Chunked:
        """The variant for the second kernel's work and shared memory."""
        aligned = call.token_access_bytes("q", "k", "v", "o") == ACCESS_BYTES
        if call.channel_decay:
            aligned &= call.token_access_bytes("g") >= _DECAYS_BYTES
        sizes = (call.dtype, call.state.dtype, call.key_size, call.value_size)
        variant = cls(*sizes, call.normed, aligned, _MOST_WARPS, 2, call.channel_decay)
        while variant.warps > _LEAST_WARPS:
            halved = replace(variant, warps=variant.warps // 2)
            one_wave = call.rows * call.value_heads * halved.slices <= device.multiprocessors
            if not one_wave and variant.warps * _COLUMNS_OF_WARP < 2 * call.value_size:
                break
            variant = halved
        return variant if variant.columns_bytes <= device.shared_bytes else replace(variant, stages=1)

    @property
    def slices(self) -> int:
        """Blocks of the second kernel that share a head."""
        return -(-self.value_size // (self.warps * _COLUMNS_OF_WARP))

    @property
    def loaders(self) -> int:
        """Warps that only copy tiles, where the others leave schedulers of a multiprocessor idle."""
        return _LOADERS if self.warps == _LEAST_WARPS else 0

    @property
    def chunk_bytes(self) -> int:
        """Size of PreparedChunk in prefill_params.cuh, or of PreparedChannels with a decay per key channel."""
        inner = 4 if self.dtype is DType.FLOAT32 else 2
        chunk = 2 * _TRIANGLE * inner + 4 * (4 * CHUNK + 4)
        return _round_up(3 * self.tile_bytes + chunk + 4 * self.key_size, 128) if self.channel_decay else chunk

    @property
    def tile_bytes(self) -> int:
        """Size of a [CHUNK][key_size] tile: TileLayout in common/mma.cuh."""
        units = self.key_size * self.dtype.itemsize // ACCESS_BYTES
        pitch = units if units % 8 == 0 or units % 2 else units + 1
        return CHUNK * pitch * ACCESS_BYTES

    @property
    def prepare_bytes(self) -> int:
        """Size of Shared in prefill_prepare.cu."""
        floats = CHUNK * (CHUNK + 4) + 4 * 3 * CHUNK + 2 * CHUNK + _ITEM_WORDS
        return _round_up(2 * _round_up(self.tile_bytes, 128) + 4 * floats, 128)

    @property
    def columns_bytes(self) -> int:
        """Size of the stages of prefill_columns.cu."""
        if self.channel_decay:
            return self.stages * self.chunk_bytes
        return self.stages * (2 * _round_up(self.tile_bytes, 128) + _round_up(self.chunk_bytes, 128))

    @property
    def is_hot(self) -> bool:
        """Whether all of a warp's work fits the registers."""
        return self.aligned and self.dtype is not DType.FLOAT32 and self.key_size <= _LARGEST_HOT_KEY

    def prepare_source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "KEY_SIZE": self.key_size,
            "NORMED": self.normed,
            "ALIGNED": self.aligned,
        }
        return KernelSource.of(PREPARE_FILE, PREPARE_ENTRY, defines)

    def columns_defines(self) -> dict[str, object]:
        return {
            "DATA_T": self.dtype,
            "STATE_T": self.state,
            "KEY_SIZE": self.key_size,
            "VALUE_SIZE": self.value_size,
            "ALIGNED": self.aligned,
            "CHANNEL_DECAY": self.channel_decay,
        }

    def columns_source(self) -> KernelSource:
        own = {"WARPS": self.warps, "LOADERS": self.loaders, "STAGES": self.stages}
        return KernelSource.of(COLUMNS_FILE, COLUMNS_ENTRY, self.columns_defines() | own, hot=self.is_hot)

    @property
    def pairs(self) -> ColumnPairs:
        """The same columns with warps of their own for the outputs."""
        return ColumnPairs(self.warps, self.key_size, self.channel_decay, self.columns_bytes)

    def pairs_source(self) -> KernelSource:
        return self.pairs.source(self.columns_defines(), self.is_hot)

    def has_pairs(self, call: DeltaCall, device: DeviceTraits) -> bool:
        """Whether its blocks leave room on the device for more warps of 16-bit data."""
        small = self.dtype is not DType.FLOAT32 and self.key_size <= LARGEST_KEY and self.warps <= MOST_WARPS
        one_wave = call.rows * call.value_heads * self.slices <= device.multiprocessors
        return small and one_wave and self.stages == 2 and self.pairs.shared_bytes <= device.shared_bytes


def plan_prefill(call: DeltaCall, device: DeviceTraits) -> CallPlan:
    """The two launches of ``call``; UnsupportedError where a chunk needs more shared memory than the device has."""
    variant = _variant(call, device)
    chunks = -(-call.time // CHUNK)
    blocks = chunks * call.key_heads * call.rows
    prepared = chunk_slots(call, chunks) * call.value_heads
    work = {"chunks": PointerSource(Memory.WORKSPACE)} | row_pointers(call.call, "rows.")
    params, counters = prefill_params(call, chunks), 0
    if takes(call, device):
        groups = Groups.of(call, device, variant.chunk_bytes)
        params.readers, params.together = groups.slices, groups.fits_together(call, device)
        work["waiting"] = PointerSource(Memory.COUNTERS)
        params.rows_at_once = groups.rows_at_once(call, device)
        states = groups.launch(params, call, states_pointers(call, work))
        counters = prepared * _COUNTER_BYTES
    else:
        states = columns_launch(call, device, variant, params, work)
    at_once = device.multiprocessors * (1 if params.together else BLOCKS_AT_ONCE)
    source, shared_bytes = _prepare(call, device, variant)
    prepare = KernelLaunch(
        source,
        (min(blocks, at_once), 1, 1),
        (_PREPARE_THREADS, 1, 1),
        params,
        call.inputs("q", "k", "g", "beta") | work,
        shared_bytes,
        overlap=device.is_hopper_or_later,
    )
    return CallPlan((prepare, states), prepared * variant.chunk_bytes, states.source.label, counters)


def columns_launch(
    call: DeltaCall, device: DeviceTraits, variant: Chunked, params: Any, work: dict[str, PointerSource]
) -> KernelLaunch:
    """The second kernel where it is not one of whole warpgroups."""
    source, threads = variant.columns_source(), (variant.warps + variant.loaders) * _WARP
    shared_bytes = variant.columns_bytes
    if variant.has_pairs(call, device):
        source, threads, shared_bytes = variant.pairs_source(), variant.pairs.threads, variant.pairs.shared_bytes
    return KernelLaunch(
        source,
        (params.values_per_key * variant.slices, call.key_heads, call.rows),
        (threads, 1, 1),
        params,
        states_pointers(call, work),
        shared_bytes,
        overlap=device.is_hopper_or_later,
    )


def states_pointers(call: DeltaCall, work: dict[str, PointerSource]) -> dict[str, PointerSource]:
    return call.inputs("q", "k", "v", "state") | call.outputs() | work


def prefill_sources() -> Iterator[KernelSource]:
    """Every type and cut at the usual sizes, other sizes in bfloat16, and both loads."""
    base = Chunked(DType.BFLOAT16, DType.FLOAT32, 128, 128, True, True, _LEAST_WARPS, 2)
    yield replace(base, dtype=DType.FLOAT32).prepare_source()
    for dtype in CUDA_TYPES:
        stages = 1 if dtype is DType.FLOAT32 else 2
        for state in {DType.FLOAT32, dtype}:
            yield from cut_sources(replace(base, dtype=dtype, state=state, stages=stages))
    for key_size, value_size in ((64, 64), (96, 192), (192, 192), (256, 256), (16, 16)):
        for aligned in (True, False):
            sized = replace(base, key_size=key_size, value_size=value_size, aligned=aligned, normed=aligned)
            yield replace(sized, dtype=DType.FLOAT32).prepare_source()
            yield sized.columns_source()
            if key_size <= LARGEST_KEY:
                yield sized.pairs_source()
    yield from pairs_sources()
    yield from groups_sources()


def cut_sources(base: Chunked) -> Iterator[KernelSource]:
    """The second kernel with few and with many columns a block."""
    for warps in (_LEAST_WARPS, _MOST_WARPS):
        yield replace(base, warps=warps).columns_source()
    if base.dtype is not DType.FLOAT32:
        for warps in (_LEAST_WARPS, MOST_WARPS):
            yield replace(base, warps=warps).pairs_source()


def _variant(call: DeltaCall, device: DeviceTraits) -> Chunked:
    variant = Chunked.of(call, device)
    needed = max(variant.columns_bytes, _prepare(call, device, variant)[1])
    if needed > device.shared_bytes:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected a GPU with {needed} bytes of shared memory a block for "
            f"{call.dtype.value} at key_size {call.key_size}, found {device.shared_bytes}: use a 16-bit type or the "
            "portable form (plugins off)"
        )
    return variant


def _prepare(call: DeltaCall, device: DeviceTraits, variant: Chunked) -> tuple[KernelSource, int]:
    """The first kernel, and its bytes of shared memory."""
    if variant.dtype is DType.FLOAT32:
        return variant.prepare_source(), variant.prepare_bytes
    pairs = Pairs.of(call, variant.tile_bytes, variant.aligned, takes(call, device))
    return pairs.source(), pairs.shared_bytes


def prefill_params(call: DeltaCall, chunks: int) -> Any:
    """The parameters of both kernels. chunks: slots of a row."""
    params = struct_type(PREPARE_FILE, "GatedDeltaPrefill")()
    call.fill(params)
    params.rows.rows, params.rows.time = call.rows, call.time
    params.key_heads, params.value_heads, params.row_chunks = call.key_heads, call.value_heads, chunks
    params.rows_at_once = max(1, call.rows)
    return params


def chunk_slots(call: DeltaCall, chunks: int) -> int:
    """first_chunk_slot() of prefill_params.cuh, past the last row."""
    if call.call.packed is None:
        return call.rows * chunks
    return call.call.input("v").shape[0] // CHUNK + call.rows


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
