"""The kernels of ``paged_attention`` for rows with several new tokens: tiles of queries on tensor cores.

The host knows no lengths: a grid is bounded by shapes, and every block finds its tile on the device.
docs/explanation/kernels/paged_attention_prefill.md has the reasons.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.architectures import HOPPER
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.fp8_kv import KV_SCALES

MMA_FILE, _MMA_ENTRY = "paged_attention/prefill_mma.cu", "paged_attention_prefill_mma"
WGMMA_FILE, _WGMMA_ENTRY = "paged_attention/prefill_wgmma.cu", "paged_attention_prefill_wgmma"
CONVERT_FILE, _CONVERT_ENTRY = "paged_attention/prefill_convert.cu", "paged_attention_prefill_convert"
_WGMMA_THREADS = 384
_CONVERT_THREADS, _CONVERT_BLOCKS = 256, 4  # of a multiprocessor
_CONVERT_RUN = 16  # positions of a warp at a time
_STAGES = 2  # tiles of keys, and of values, in Hopper's shared memory
_HOPPER_BYTES = 227 << 10  # of it
_LARGE_SHARED_BYTES = 128 << 10  # of a block: two of 64 KiB fit then
_LONG_ROW = 256  # rows of the largest tile
_PANEL = 64  # columns of a row that Hopper's products read as one piece
_TASK_BYTES = 28  # what the block computes at a time
_MAP_BYTES = 2 * 128  # the tensor maps of a block
_BOXED_KEYS = 1024  # of a row, from which on the copy engine copies boxes of them
_MOST_CONVERTED = 256 << 20  # bytes of keys and values that are converted before
_MOST_POOL = 64 << 20  # the same without Hopper's products: smaller GPUs have less memory
_MOST_TILE_KEYS = 64  # of those
_ALIGNMENT = 256  # of the parts of a workspace
_MOST_STRIDE = 1 << 40  # bytes that a tensor map's stride stays below
_LONGEST_GRID = _MOST_UNITS = 2**31 - 1


@dataclass(frozen=True)
class PrefillVariant:
    """Macros of a kernel. rows, keys: of a tile; a row is one query head at one token. fp8: pools of e4m3.

    wide: Hopper's products find keys by heads in place of 16 bytes, in larger pools. boxes: their keys come as boxes of
    tensor maps. converted: those of fp8 may be converted before. Without Hopper's products, warps share the rows of a
    tile, and teams of warps its keys; pool: their keys are those that were converted before.
    """

    dtype: DType
    head_dim: int
    rows: int
    keys: int
    softcap: bool = False
    hopper: bool = False
    fp8: bool = False
    wide: bool = False
    boxes: bool = False
    converted: bool = False
    warps: int = 4
    teams: int = 1
    pool: bool = False

    @property
    def threads(self) -> int:
        return _WGMMA_THREADS if self.hopper else 32 * self.warps * self.teams

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: a tile of queries, and keys and values."""
        if self.hopper:
            return self._hopper_bytes(self.query_stages)
        units = -(-self.head_dim // 16) * 16 * self.dtype.itemsize // ACCESS_BYTES
        pitch = units if units % 8 == 0 or units % 2 else units + 1  # TileLayout in common/mma.cuh
        return (self.rows + 2 * self.keys * self.teams) * pitch * ACCESS_BYTES

    @property
    def query_stages(self) -> int:
        """Tiles of queries in Hopper's shared memory: those of the next work are on their way, where they fit."""
        return 2 if self._hopper_bytes(2) <= _HOPPER_BYTES else 1

    @property
    def _row_bytes(self) -> int:
        """Of a query or a key in Hopper's shared memory."""
        return 2 * _PANEL * -(-self.head_dim // _PANEL)

    @property
    def block_bytes(self) -> int:
        """Of a tile of keys and one of values."""
        return 2 * self.keys * (self._row_bytes if self.hopper else self.head_dim * self.dtype.itemsize)

    def _hopper_bytes(self, query_stages: int) -> int:
        """Size of Shared in prefill_wgmma_rows.cuh."""
        tiles = self._row_bytes * (query_stages * self.rows + 2 * _STAGES * self.keys)
        return tiles + _MAP_BYTES + 8 * (2 * query_stages + 4 * _STAGES) + query_stages * _TASK_BYTES

    def source(self) -> KernelSource:
        defines = self._defines() | {"SOFTCAP": self.softcap}
        if self.wide:
            defines["WIDE_POOL"] = "1"
        if self.hopper:
            stages = {"STAGES": _STAGES, "QUERY_STAGES": self.query_stages}
            return KernelSource.of(
                WGMMA_FILE, _WGMMA_ENTRY, defines | stages | {"BOXES": self.boxes, "CONVERTED": self.converted}
            )
        defines |= {"WARPS": self.warps, "TEAMS": self.teams}
        if self.pool:
            defines["CONVERTED_POOL"] = "1"
        # With 64 keys and 128 columns, sums that a block of keys needs once spill on some GPUs.
        tight = self.keys == 64 and self.head_dim > 64
        return KernelSource.of(MMA_FILE, _MMA_ENTRY, defines, hot=self.dtype is not DType.FLOAT32 and not tight)

    def convert_source(self) -> KernelSource:
        """The kernel before, where keys are converted."""
        defines = self._defines() | {"CACHE_T": "E4m3"}
        if not self.hopper:
            defines["PLAIN_ROWS"] = "1"
        return KernelSource.of(CONVERT_FILE, _CONVERT_ENTRY, defines)

    def _defines(self) -> dict[str, object]:
        return {
            "DATA_T": self.dtype,
            "CACHE_T": "E4m3" if self.fp8 else self.dtype,
            "HEAD_DIM": self.head_dim,
            "TILE_ROWS": self.rows,
            "TILE_KEYS": self.keys,
        }


def plan_prefill(paged: PagedCall, device: DeviceTraits) -> CallPlan:
    """The launch that writes y of the rows with two or more new tokens and leaves all else of y unchanged.

    UnsupportedError for pools that 31 bits do not reach through, and for grids over the limit.
    """
    variant = _variant(paged, device)
    if variant.fp8 and not variant.hopper and _converts_before(paged, _sizing_variant(variant)):
        return _plan_with_pool(paged, variant, device)
    return _plan(paged, variant, device)


def _plan(paged: PagedCall, variant: PrefillVariant, device: DeviceTraits) -> CallPlan:
    """The launches of ``variant`` for every row."""
    tiles = paged.tokens * paged.group // variant.rows + paged.rows  # the last one of a row may be a part
    blocks = tiles * paged.kv_heads
    if blocks > _LONGEST_GRID:
        raise UnsupportedError(
            f"paged_attention: expected at most {_LONGEST_GRID} tiles, found {blocks}: split the call"
        )
    source = variant.source()
    params: Any = struct_type(source.file, "WgmmaPrefill" if variant.hopper else "PagedAttention")()
    paged.fill(params.call if variant.hopper else params)
    pointers = paged.pointers("call." if variant.hopper else "")
    if variant.boxes:
        pointers["maps"] = PointerSource(Memory.WORKSPACE)
    launch = KernelLaunch(
        source,
        (min(blocks, device.multiprocessors) if variant.hopper else blocks, 1, 1),
        (variant.threads, 1, 1),
        params,
        pointers,
        variant.shared_bytes,
        overlap=device.is_hopper_or_later,
    )
    if variant.converted:
        return _with_conversion(launch, variant, paged, device)
    # As much for every grid: builders ask for the workspace of some calls of a range.
    return CallPlan((launch,), _MAP_BYTES * device.multiprocessors if variant.boxes else 0)


def _with_conversion(launch: KernelLaunch, variant: PrefillVariant, paged: PagedCall, device: DeviceTraits) -> CallPlan:
    """``launch`` after the kernel that converts keys, for as many of them as there may be or the memory holds."""
    block_bytes = variant.block_bytes * paged.kv_heads
    count = min(_most_converted(paged, variant), _MOST_CONVERTED // block_bytes)
    # A shift for each row, of which there are fewer than tokens: builders ask for the workspace of the most tokens.
    zeros = -(-4 * max(paged.rows, paged.tokens) // _ALIGNMENT) * _ALIGNMENT
    tiles = zeros + variant.keys // 4 * 2 * _PANEL
    launch.params.converted.blocks = count
    pointers = {
        **launch.pointers,
        "converted.shift": PointerSource(Memory.WORKSPACE),
        "converted.zeros": PointerSource(Memory.WORKSPACE, offset=zeros),
        "converted.tiles": PointerSource(Memory.WORKSPACE, offset=tiles),
    }
    convert = _conversion(variant, paged, device, launch.params, pointers)
    return CallPlan((convert, replace(launch, pointers=pointers)), tiles + count * block_bytes)


def _conversion(
    variant: PrefillVariant, paged: PagedCall, device: DeviceTraits, params: Any, pointers: dict[str, PointerSource]
) -> KernelLaunch:
    """The launch that converts as many blocks of keys as ``params`` says. pointers: of the call and of its results."""
    warps = params.converted.blocks * (variant.keys // _CONVERT_RUN) * paged.kv_heads * 2
    grid = min(-(-warps * 32 // _CONVERT_THREADS), device.multiprocessors * _CONVERT_BLOCKS)
    threads, overlap = (_CONVERT_THREADS, 1, 1), device.is_hopper_or_later
    return KernelLaunch(variant.convert_source(), (grid, 1, 1), threads, params, pointers, overlap=overlap)


def _plan_with_pool(paged: PagedCall, direct: PrefillVariant, device: DeviceTraits) -> CallPlan:
    """Without Hopper's products, converted keys are a pool of 16-bit numbers, whose blocks are tiles of keys.

    Rows of several tiles of queries are converted as far as the memory goes. ``direct`` takes the rest: in each of the
    two launches the other one's rows have no tokens.
    """
    base = _mma_variant(direct.dtype, direct.head_dim, direct.softcap)
    variant = replace(_mma_choice(paged, base, device), pool=True)
    sizing = _sizing_variant(base)
    memory = min(_most_converted(paged, sizing) * sizing.block_bytes * paged.kv_heads, _MOST_POOL)
    most, count = _most_converted(paged, variant), memory // (variant.block_bytes * paged.kv_heads)
    # Numbers of each row, of which there are fewer than tokens: builders ask for the workspace of the most tokens.
    numbers = -(-4 * max(paged.rows, paged.tokens) // _ALIGNMENT) * _ALIGNMENT
    shift, lengths, others, tiles = (PointerSource(Memory.WORKSPACE, offset=numbers * index) for index in range(4))
    params: Any = struct_type(CONVERT_FILE, "WgmmaPrefill")()
    paged.fill(params.call)
    params.converted.blocks = count
    written = {"shift": shift, "lengths": lengths, "other_lengths": others, "tiles": tiles}
    pointers = paged.pointers("call.") | {f"converted.{name}": place for name, place in written.items()}
    convert = _conversion(variant, paged, device, params, pointers)
    (attend,), (rest,) = _plan(paged, variant, device).launches, _plan(paged, direct, device).launches
    _describe_pool(attend.params, paged, variant)
    pointers = {name: place for name, place in attend.pointers.items() if name != KV_SCALES.name}
    attend = replace(attend, pointers=pointers | {"kv_pool": tiles, "block_table": shift, "seq_lens": lengths})
    # Where the memory is enough for all rows of several tiles, those of one tile are left.
    left = paged.rows * -(-variant.rows // direct.rows) * paged.kv_heads
    grid = (min(rest.grid[0], left) if count >= most else rest.grid[0], 1, 1)
    rest = replace(rest, grid=grid, pointers={**rest.pointers, "seq_lens": others})
    return CallPlan((convert, attend, rest), 3 * numbers + memory)


def _sizing_variant(variant: PrefillVariant) -> PrefillVariant:
    """The smallest tiles of queries and the largest ones of keys: calls of fewer tokens take no more memory."""
    return replace(_mma_variant(variant.dtype, variant.head_dim), keys=_MOST_TILE_KEYS)


def _describe_pool(params: Any, paged: PagedCall, variant: PrefillVariant) -> None:
    """Blocks of [kv_heads][keys, values][keys of a tile][head_dim], found by a shift for each row."""
    params.pool_slot = paged.head_dim
    params.pool_values = variant.keys * paged.head_dim
    params.pool_head = 2 * params.pool_values
    params.pool_block = params.pool_head * paged.kv_heads
    params.block_size, params.max_blocks, params.table_row = variant.keys, -(-paged.longest // variant.keys), 1


def _most_converted(paged: PagedCall, variant: PrefillVariant) -> int:
    """Most blocks of keys of all rows that have two tiles of queries."""
    rows = min(paged.rows, paged.tokens // (variant.rows // paged.group + 1))
    longest = -(-paged.longest // variant.keys)
    if paged.sliding_window:
        seen = paged.sliding_window + paged.most_row_tokens
        longest = min(longest, -(-seen // variant.keys) + 1)
    return rows * longest


def prefill_sources() -> Iterator[KernelSource]:
    """Every type and kernel at the usual head dims, others in bfloat16, and soft caps."""
    for dtype, head_dim in itertools.product(CUDA_TYPES, (64, 128, 256)):
        yield _mma_variant(dtype, head_dim).source()
        if dtype is not DType.FLOAT32:
            yield _wgmma_variant(dtype, head_dim).source()
    for head_dim in (72, 80, 96, 192):
        yield _mma_variant(DType.BFLOAT16, head_dim).source()
        yield _wgmma_variant(DType.BFLOAT16, head_dim).source()
    for head_dim in (64, 128, 256):
        yield _mma_variant(DType.BFLOAT16, head_dim, softcap=True).source()
        yield _wgmma_variant(DType.BFLOAT16, head_dim, softcap=True).source()
    for dtype, head_dim in ((DType.BFLOAT16, 64), (DType.BFLOAT16, 80), (DType.BFLOAT16, 128), (DType.FLOAT16, 128),
                            (DType.BFLOAT16, 192), (DType.BFLOAT16, 256)):  # fmt: skip
        yield _mma_variant(dtype, head_dim, fp8=True).source()
        yield _wgmma_variant(dtype, head_dim, fp8=True).source()
    for head_dim in (128, 256):
        yield _mma_variant(DType.BFLOAT16, head_dim, softcap=True, fp8=True).source()
        yield _wgmma_variant(DType.BFLOAT16, head_dim, softcap=True, fp8=True).source()
    for head_dim, fp8 in itertools.product((64, 128, 256), (False, True)):
        yield _wgmma_variant(DType.BFLOAT16, head_dim, fp8=fp8, wide=True).source()
    for dtype, head_dim in itertools.product((DType.BFLOAT16, DType.FLOAT16), (64, 72, 128, 192, 256)):
        yield replace(_wgmma_variant(dtype, head_dim), boxes=True).source()
    for head_dim in (64, 128, 256):
        yield replace(_wgmma_variant(DType.BFLOAT16, head_dim, softcap=True), boxes=True).source()
        yield replace(_wgmma_variant(DType.BFLOAT16, head_dim, wide=True), boxes=True).source()
    for dtype, head_dim in ((DType.BFLOAT16, 64), (DType.BFLOAT16, 80), (DType.BFLOAT16, 128), (DType.FLOAT16, 128),
                            (DType.BFLOAT16, 192), (DType.BFLOAT16, 256)):  # fmt: skip
        variant = replace(_wgmma_variant(dtype, head_dim, fp8=True), converted=True)
        yield variant.source()
        yield variant.convert_source()
    for head_dim in (128, 256):
        yield replace(_wgmma_variant(DType.BFLOAT16, head_dim, softcap=True, fp8=True), converted=True).source()
    for dtype, head_dim in ((DType.BFLOAT16, 64), (DType.BFLOAT16, 80), (DType.BFLOAT16, 128), (DType.FLOAT16, 128),
                            (DType.BFLOAT16, 192), (DType.BFLOAT16, 256)):  # fmt: skip
        variant = replace(_mma_variant(dtype, head_dim), pool=True)
        yield variant.source()
        yield variant.convert_source()
    for softcap, fp8 in itertools.product((False, True), repeat=2):
        yield _for_few_tiles(_mma_variant(DType.BFLOAT16, 128, softcap, fp8)).source()
    for change, softcap in itertools.product((_for_large_memory, _for_long_rows), (False, True)):
        yield change(_mma_variant(DType.BFLOAT16, 128, softcap)).source()
    for change in (_for_few_tiles, _for_large_memory, _for_long_rows):
        yield change(_mma_variant(DType.BFLOAT16, 80)).source()
        yield change(_mma_variant(DType.FLOAT16, 128)).source()


def _variant(paged: PagedCall, device: DeviceTraits) -> PrefillVariant:
    hopper = device.capability == HOPPER and paged.dtype is not DType.FLOAT32
    softcap = float(paged.call.attributes["softcap"]) != 0.0
    kind = paged.dtype, paged.head_dim, softcap, paged.is_fp8
    if hopper:
        variant = _wgmma_variant(*kind, _is_wide(paged))
        return replace(variant, boxes=_takes_boxes(paged), converted=_converts_before(paged, variant))
    return _mma_choice(paged, _mma_variant(*kind), device)


def _mma_choice(paged: PagedCall, variant: PrefillVariant, device: DeviceTraits) -> PrefillVariant:
    """``variant`` or a larger one, as the call and the device allow."""
    blocks = paged.tokens * paged.group // variant.rows * paged.kv_heads
    if blocks <= device.multiprocessors:
        return _for_few_tiles(variant)
    if device.shared_bytes >= _LARGE_SHARED_BYTES:
        return _for_large_memory(variant)
    return _for_long_rows(variant) if paged.tokens * paged.group >= _LONG_ROW * paged.rows else variant


def _mma_variant(dtype: DType, head_dim: int, softcap: bool = False, fp8: bool = False) -> PrefillVariant:
    """Tiles whose accumulators fit the registers, and of which two fit 99 KiB of shared memory up to 128 columns."""
    if dtype is DType.FLOAT32:
        rows, keys = 64, 32 if head_dim <= 128 else 16
    elif head_dim <= 64:
        rows, keys = 128, 64
    elif head_dim <= 128:
        rows, keys = 128, 32
    else:
        rows, keys = 64, 32
    return PrefillVariant(dtype, head_dim, rows, keys, softcap, fp8=fp8)


def _for_few_tiles(variant: PrefillVariant) -> PrefillVariant:
    """For grids of at most one block for each multiprocessor: twice the warps, a second team or half the rows."""
    if variant.fp8 and variant.keys == 32 and variant.rows == 128:
        return replace(variant, keys=64, warps=8)
    return replace(variant, keys=64, teams=2) if _takes_more_keys(variant) else variant


def _for_large_memory(variant: PrefillVariant) -> PrefillVariant:
    """Where two blocks of 64 KiB fit a multiprocessor: twice the keys."""
    return replace(variant, keys=64) if _takes_more_keys(variant) else variant


def _for_long_rows(variant: PrefillVariant) -> PrefillVariant:
    """In 99 KiB: one block with twice the keys and rows."""
    return replace(variant, rows=_LONG_ROW, keys=64, warps=8) if _takes_more_keys(variant) else variant


def _takes_more_keys(variant: PrefillVariant) -> bool:
    """Whether registers are left: e4m3 on its way takes them."""
    return variant.rows == 128 and variant.keys == 32 and not variant.fp8


def _wgmma_variant(
    dtype: DType, head_dim: int, softcap: bool = False, fp8: bool = False, wide: bool = False
) -> PrefillVariant:
    """Tiles of two warpgroups; keys as their accumulators leave registers for."""
    keys = 128 if head_dim <= 128 else 64
    return PrefillVariant(dtype, head_dim, 128, keys, softcap, hopper=True, fp8=fp8, wide=wide)


def _takes_boxes(paged: PagedCall) -> bool:
    """Whether rows may be long enough to pay for tensor maps of the pool, and maps can describe it."""
    strides = paged.call.input("kv_pool").strides[1:4]
    described = all(0 < stride * paged.dtype.itemsize < _MOST_STRIDE for stride in strides)
    return paged.longest >= _BOXED_KEYS and described and not paged.is_fp8


def _converts_before(paged: PagedCall, variant: PrefillVariant) -> bool:
    """Whether a row may have two tiles of queries, each of which would convert its keys."""
    fits = variant.block_bytes * paged.kv_heads <= (_MOST_CONVERTED if variant.hopper else _MOST_POOL)
    return paged.is_fp8 and paged.most_row_tokens * paged.group > variant.rows and fits


def _is_wide(paged: PagedCall) -> bool:
    """Whether keys are addressed by heads, as 31 bits of 16-byte units are too few; UnsupportedError if both fail."""
    pool = paged.call.input("kv_pool")
    reach = pool.shape[1] * abs(pool.strides[1])
    if reach * pool.dtype.itemsize // ACCESS_BYTES <= _MOST_UNITS:
        return False
    if reach // paged.head_dim <= _MOST_UNITS and not any(stride % paged.head_dim for stride in pool.strides[1:3]):
        return True
    most = _MOST_UNITS * paged.head_dim * pool.dtype.itemsize >> 30
    raise UnsupportedError(
        f"paged_attention: expected keys of at most {most} GiB in a pool, at multiples of their heads, found "
        f"{reach * pool.dtype.itemsize >> 30} GiB of strides {list(pool.strides)}: use fewer blocks"
    )
