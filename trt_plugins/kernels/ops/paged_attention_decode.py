"""The kernel of ``paged_attention`` for rows of one token: every KV head is read once for its group of query heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "paged_attention/decode_steps.cu"
ENTRY = "paged_attention_decode"
STEP = 16  # positions that a warp takes at once
LINE, ALONE = 0, 1  # values of DecodeVariant.cluster other than sizes of clusters
_WARP = 32
_TILE_QUERIES = 8
_MOST_TILES = 2  # of queries in one block; their accumulators are registers
_TILED_DIM = 128  # the largest head_dim with more than one
_ITEM_BYTES = 20  # an Item and its count of steps
_FLOAT = 4
# Shared memory of every block that the driver reserves.
_RESERVED_SHARED = 1 << 10
# Shared memory of the GPUs whose variants are compiled in advance.
_SHARED_BYTES = (227 << 10, 99 << 10)
_LARGEST_GRID_YZ = 65535
# One block reads a KV head of this many positions as fast as several.
_SHORT_POSITIONS = 8 * STEP
# Items whose lengths every block keeps in shared memory.
_MOST_SHARED_ITEMS = 1024
_LONGEST_LINE = 1 << 30
_STAGED_COLUMNS = 2  # of decode_steps.cu
# Clusters merge in less time than the line: worth it for at most this many steps for each multiprocessor, the second
# number where clusters leave some of them idle.
_CLUSTERED_MAJORS = (9, 10)
_CLUSTERS = (8, 4, 2)
_CLUSTERED_STEPS, _IDLE_STEPS = 64, 16
_BUSY_SHARE = 0.9


@dataclass(frozen=True)
class DecodeShape:
    """Warps of a block, steps in the ring of each, blocks of a multiprocessor."""

    warps: int
    stages: int
    blocks: int


# From the fastest to the smallest: with many units for each multiprocessor, blocks that end at different times.
_MANY = tuple(itertools.starmap(DecodeShape, ((4, 3, 2), (4, 2, 2), (4, 3, 1), (4, 2, 1), (2, 2, 1), (1, 2, 1))))
_FEW = tuple(itertools.starmap(DecodeShape, ((8, 3, 1), (8, 2, 1), *((4, n, 1) for n in (3, 2)), (2, 2, 1), (1, 2, 1))))
_CLUSTERED = _FEW[1:]  # what the third stage would hold is less than what it costs to begin with


@dataclass(frozen=True)
class DecodeVariant:
    """The macros of decode_steps.cu. cluster: LINE, ALONE or the blocks of a cluster. fp8: pools of e4m3."""

    dtype: DType
    head_dim: int
    query_tiles: int
    cluster: int
    shape: DecodeShape
    fp8: bool = False

    @property
    def queries(self) -> int:
        return self.query_tiles * _TILE_QUERIES

    def shared_bytes(self, heads: int, items: int, staged: int = 0) -> int:
        """Dynamic shared memory of a block that merges ``heads`` heads of a unit and keeps ``items`` items.

        staged: columns of the block table that it copies.
        """
        columns = -(-self.head_dim // 16) * 16
        units = columns * (1 if self.fp8 else self.dtype.itemsize) // ACCESS_BYTES
        pitch = units if units % 8 == 0 or units % 2 else units + 1  # TileLayout in common/mma.cuh
        row = pitch * ACCESS_BYTES + (_FLOAT if self.fp8 else 0)  # with its scale
        ring = self.shape.warps * self.shape.stages * 2 * STEP * row
        merge = self.shape.warps * heads * (columns + 4 + 2)
        if self.cluster > ALONE:  # a share of the runs of 4 dims, with largest and sum, from every block
            merge += -(-heads * self.head_dim // 4 // self.cluster) * self.cluster * 6
        return ring + (merge + staged + 1) * _FLOAT + items * _ITEM_BYTES

    @property
    def part_bytes(self) -> int:
        """Workspace of one block of the line: two parts of a unit."""
        return 2 * self.queries * (self.head_dim + 2) * _FLOAT

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "CACHE_T": "E4m3" if self.fp8 else self.dtype,
            "HEAD_DIM": self.head_dim,
            "QUERY_TILES": self.query_tiles,
            "CLUSTER": self.cluster,
            "WARPS": self.shape.warps,
            "STAGES": self.shape.stages,
            "BLOCKS": self.shape.blocks,
        }
        return KernelSource.of(FILE, ENTRY, defines, hot=self.dtype is not DType.FLOAT32)


@dataclass(frozen=True)
class DecodeLaunch:
    """The launch, and the memory of the plan that it needs."""

    launch: KernelLaunch
    workspace_bytes: int = 0
    counter_bytes: int = 0


@dataclass(frozen=True)
class _Sizes:
    """items: tokens that attend. units: of an item, each a KV head with one of the ``tiles`` tiles of its group."""

    items: int
    tiles: int
    units: int
    heads: int
    steps: int


def decode_launch(call: PagedCall, device: DeviceTraits) -> DecodeLaunch:
    """The launch for rows of one token; UnsupportedError where the GPU has too little shared memory."""
    query_tiles = _query_tiles(call)
    queries = query_tiles * _TILE_QUERIES
    tiles, items = -(-call.group // queries), call.tokens if call.decodes_every_token else call.rows
    sizes = _Sizes(items, tiles, call.kv_heads * tiles, min(call.group, queries), -(-call.longest // STEP))
    cluster = _cluster(sizes, device)
    stored = items if cluster == LINE else 1
    shapes = _shapes(sizes, cluster, device)
    variant = DecodeVariant(call.dtype, call.head_dim, query_tiles, cluster, shapes[0], call.is_fp8)
    variant = _fitting(variant, shapes, sizes.heads, stored, device.shared_bytes)
    params = struct_type(FILE, "PagedDecode")()
    call.fill(params.call)
    params.items, params.tiles, params.units, params.merged_heads = items, tiles, sizes.units, sizes.heads
    staged = _staged(call, variant)
    params.every_token, params.block_steps = int(call.decodes_every_token), call.block_size // STEP
    params.staged = staged
    pointers = call.pointers("call.")
    blocks = device.multiprocessors * variant.shape.blocks
    if cluster == LINE:
        pointers |= {"partials": PointerSource(Memory.WORKSPACE), "counters": PointerSource(Memory.COUNTERS)}
    launch = KernelLaunch(
        variant.source(),
        (blocks, 1, 1) if cluster == LINE else _cluster_grid(sizes, cluster),
        (variant.shape.warps * _WARP, 1, 1),
        params,
        pointers,
        _without_room(variant, variant.shared_bytes(sizes.heads, stored, staged), device),
        cluster=max(cluster, 1),
        overlap=device.is_hopper_or_later,
    )
    if cluster != LINE:
        return DecodeLaunch(launch)
    return DecodeLaunch(launch, blocks * variant.part_bytes, items * sizes.units * _FLOAT)


def decode_sources() -> Iterator[KernelSource]:
    """Every form and type at usual head dims; other sizes, groups and GPUs in bfloat16."""
    hopper, ada = _SHARED_BYTES
    base = DecodeVariant(DType.BFLOAT16, 128, 1, LINE, _MANY[0])
    forms = ((LINE, _MANY), (LINE, _FEW), (ALONE, _MANY), (2, _CLUSTERED))
    for head_dim, (cluster, shapes) in itertools.product((64, 128, 256), forms):
        variant = replace(base, head_dim=head_dim, cluster=cluster)
        yield _fitting(variant, shapes, 4, 1, hopper).source()
    for shapes in (_MANY, _FEW):
        yield _fitting(base, shapes, 4, 1, ada).source()
    for cluster in (4, 8):
        yield _fitting(replace(base, cluster=cluster), _CLUSTERED, 4, 1, hopper).source()
    for dtype, head_dim in ((DType.FLOAT16, 128), (DType.FLOAT32, 128), (DType.FLOAT32, 256), (DType.BFLOAT16, 80)):
        yield _fitting(replace(base, dtype=dtype, head_dim=head_dim), _MANY, 4, 1, hopper).source()
    for head_dim in (72, 128):
        yield replace(base, head_dim=head_dim, query_tiles=2).source()
    yield from _fp8_sources()


def _fp8_sources() -> Iterator[KernelSource]:
    """Pools of e4m3: every form in bfloat16, other sizes and groups, and half."""
    hopper = _SHARED_BYTES[0]
    base = DecodeVariant(DType.BFLOAT16, 128, 1, LINE, _MANY[0], fp8=True)
    for head_dim, (cluster, shapes) in itertools.product(
        (64, 128, 256), ((LINE, _MANY), (LINE, _FEW), (ALONE, _MANY), (8, _CLUSTERED))
    ):
        yield _fitting(replace(base, head_dim=head_dim, cluster=cluster), shapes, 4, 1, hopper).source()
    for head_dim in (80, 128):
        yield _fitting(replace(base, head_dim=head_dim, query_tiles=2), _MANY, 4, 1, hopper).source()
    yield _fitting(replace(base, dtype=DType.FLOAT16), _MANY, 4, 1, hopper).source()


def _query_tiles(call: PagedCall) -> int:
    requested = -(-call.group // _TILE_QUERIES)
    return min(requested, _MOST_TILES if call.head_dim <= _TILED_DIM and call.dtype.itemsize == 2 else 1)


def _cluster(sizes: _Sizes, device: DeviceTraits) -> int:
    """The form of the launch: LINE, ALONE or the size of clusters."""
    pairs = sizes.items * sizes.units
    line = sizes.items <= _MOST_SHARED_ITEMS and pairs * sizes.steps < _LONGEST_LINE
    if sizes.steps * STEP <= _SHORT_POSITIONS or not line:
        return ALONE
    if device.capability[0] not in _CLUSTERED_MAJORS:
        return LINE
    fitting = [size for size in _CLUSTERS if pairs * size <= device.multiprocessors]
    if not fitting:
        return LINE
    # The line reads with every multiprocessor, and evenly whatever the lengths of rows; clusters merge faster.
    busy = pairs * fitting[0] >= _BUSY_SHARE * device.multiprocessors
    most = (_CLUSTERED_STEPS if busy else _IDLE_STEPS) * device.multiprocessors
    return fitting[0] if pairs * sizes.steps <= most else LINE


def _staged(call: PagedCall, variant: DecodeVariant) -> int:
    fits = variant.cluster != LINE and call.max_blocks <= _STAGED_COLUMNS * variant.shape.warps * _WARP
    return call.max_blocks if fits else 0


def _without_room(variant: DecodeVariant, needed: int, device: DeviceTraits) -> int:
    """Shared memory of a block that leaves none for more blocks of the line than it has: those of a following launch,
    which begin early, would fill some multiprocessors more than others."""
    if variant.cluster != LINE or variant.shape.blocks == 1:
        return needed
    return max(needed, (device.shared_bytes + _RESERVED_SHARED) // (variant.shape.blocks + 1) // 16 * 16)


def _cluster_grid(sizes: _Sizes, cluster: int) -> tuple[int, int, int]:
    if max(sizes.units, sizes.items) > _LARGEST_GRID_YZ:
        raise UnsupportedError(
            f"paged_attention: expected at most {_LARGEST_GRID_YZ} rows and KV heads, found {sizes.items} and "
            f"{sizes.units}: split the call"
        )
    return cluster, sizes.units, sizes.items


def _shapes(sizes: _Sizes, cluster: int, device: DeviceTraits) -> tuple[DecodeShape, ...]:
    if cluster > ALONE:
        return _CLUSTERED
    return _FEW if cluster == LINE and sizes.items * sizes.units < 2 * device.multiprocessors else _MANY


def _fitting(
    variant: DecodeVariant, shapes: tuple[DecodeShape, ...], heads: int, items: int, shared: int
) -> DecodeVariant:
    """``variant`` in the first of ``shapes`` that fits a multiprocessor, which has the memory of one largest block."""
    for shape in shapes:
        shaped = replace(variant, shape=shape)
        staged = 0 if variant.cluster == LINE else _STAGED_COLUMNS * shape.warps * _WARP
        needed = shaped.shared_bytes(heads, items, staged) + _RESERVED_SHARED
        if needed * shape.blocks <= shared + _RESERVED_SHARED:
            return shaped
    smallest = replace(variant, shape=shapes[-1]).shared_bytes(heads, items)
    raise UnsupportedError(
        f"paged_attention: expected a GPU with {smallest} bytes of shared memory for head_dim {variant.head_dim} in "
        f"{variant.dtype.value}, found {shared}: use 16-bit data"
    )
