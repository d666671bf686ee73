"""The kernels of ``paged_attention`` for the latents of multi-head latent attention: keys that are the values too."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.paged_attention_call import OVERLAP_SINCE, PagedCall
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.paged_attention import LATENT_DIM

FILE, MERGE_FILE = "paged_attention/wide_heads.cu", "paged_attention/wide_merge.cu"
QUERIES = 32  # of a tile
_THREADS, _QUARTERS = 256, 4
_MOST_SPLITS = 512
# Positions of a step, and tiles of up to 32 positions in shared memory: the first that it holds.
_FORMS = ((64, 5), (32, 3), (16, 3))
_TILE = 32
_LEAST_SPLIT = 64  # positions
_LARGEST_GRID_YZ = 65535
_ALIGNMENT = 256  # of the parts of a workspace


def plan_wide(call: PagedCall, device: DeviceTraits) -> CallPlan:
    """The launches of rows of any number of tokens; UnsupportedError for float32, and for too little shared memory.

    Positions are split between blocks where there are fewer tiles of queries than multiprocessors. No more tokens than
    rows are planned as rows of one token each.
    """
    if call.dtype.itemsize != 2:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected 16-bit heads of {call.head_dim}, found {call.dtype.value}: use a 16-bit "
            "type or the portable form (plugins off)"
        )
    if call.call.input("kv_pool").shape[0] != 1:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected heads of {call.head_dim} whose keys are the values too, found a pool of "
            "keys and values: use the portable form (plugins off)"
        )
    form = next((form for form in _FORMS if _shared_bytes(call.head_dim, *form) <= device.shared_bytes), None)
    if form is None or call.rows > _LARGEST_GRID_YZ:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected a GPU with {_shared_bytes(call.head_dim, *_FORMS[-1])} bytes of shared "
            f"memory a block and at most {_LARGEST_GRID_YZ} rows, found {device.shared_bytes} and {call.rows}: use the "
            "portable form (plugins off)"
        )
    by_token = call.decodes_every_token
    tokens, rows = (1, call.tokens) if by_token else (call.most_row_tokens, call.rows)
    tiles = -(-tokens * call.group // QUERIES)
    blocks = tiles * call.kv_heads * rows
    splits = min(max(1, device.multiprocessors // blocks), -(-call.longest // _LEAST_SPLIT), _MOST_SPLITS)
    params = struct_type(FILE, "WideAttention")()
    call.fill(params.call)
    params.tiles, params.splits, params.by_token = tiles, splits, by_token
    pointers, overlap = call.pointers("call."), device.capability >= OVERLAP_SINCE
    # Of as many parts as any call can have, as builders ask for the workspace of some calls of a range.
    parts = device.multiprocessors * QUERIES
    sums = -(-parts * call.head_dim * 4 // _ALIGNMENT) * _ALIGNMENT
    if splits > 1:
        pointers |= {
            "outputs": PointerSource(Memory.WORKSPACE),
            "sums": PointerSource(Memory.WORKSPACE, offset=sums),
        }
    source, shared = _source(call, *form), _shared_bytes(call.head_dim, *form)
    grid = (tiles * call.kv_heads, splits, rows)
    launch = KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, shared, overlap=overlap)
    if splits == 1:
        return CallPlan((launch,), name=source.label)
    merge = KernelLaunch(
        _merge_source(call.dtype, call.head_dim),
        (grid[0], QUERIES, rows),
        (call.head_dim, 1, 1),
        params,
        pointers,
        overlap=overlap,
    )
    return CallPlan((launch, merge), sums + parts * 8, source.label)


def wide_sources() -> Iterator[KernelSource]:
    """Both types, steps and forms of scores."""
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for form in _FORMS:
            for softcap in (False, True):
                yield _wide_source(dtype, LATENT_DIM, *form, softcap)
        yield _merge_source(dtype, LATENT_DIM)


def _source(call: PagedCall, keys: int, slots: int) -> KernelSource:
    return _wide_source(call.dtype, call.head_dim, keys, slots, bool(call.call.attributes["softcap"]))


def _wide_source(dtype: DType, head_dim: int, keys: int, slots: int, softcap: bool) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "KEYS": keys, "SLOTS": slots, "SOFTCAP": softcap}
    return KernelSource.of(FILE, "paged_attention_wide", defines)


def _merge_source(dtype: DType, head_dim: int) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "QUERIES": QUERIES, "MOST_SPLITS": _MOST_SPLITS}
    return KernelSource.of(MERGE_FILE, "paged_attention_wide_merge", defines)


def _shared_bytes(head_dim: int, keys: int, slots: int) -> int:
    """Size of Shared in wide_heads.cu."""
    row, units = 2 * (head_dim + 8), keys // 8
    queries, scores = row * QUERIES, 4 * _QUARTERS * QUERIES * (keys + 8)
    ring = row * slots * min(keys, _TILE) + 128  # barriers are padded to the alignment of what follows
    weights = QUERIES * (units + (units % 2 == 0 and units % 8 > 0)) * 16  # TileLayout in common/mma.cuh
    return max(queries, scores) + ring + weights + 8 * QUERIES
