"""The kernels of ``paged_attention`` for heads wider than 256, such as the latents of multi-head latent attention."""

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
_THREADS, _STAGES, _QUARTERS, _MERGED_COLUMNS = 256, 2, 4, 4
_KEYS = (32, 16)  # positions of a step: the most that shared memory holds
_LEAST_SPLIT = 64  # positions
_LARGEST_GRID_YZ = 65535
_ALIGNMENT = 256  # of the parts of a workspace


def plan_wide(call: PagedCall, device: DeviceTraits) -> CallPlan:
    """The launches of rows of any number of tokens; UnsupportedError for float32, and for too little shared memory.

    Positions are split between blocks where there are fewer tiles of queries than multiprocessors.
    """
    if call.dtype.itemsize != 2:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected 16-bit heads of {call.head_dim}, found {call.dtype.value}: use a 16-bit "
            "type or the portable form (plugins off)"
        )
    keys = next((keys for keys in _KEYS if _shared_bytes(call.head_dim, keys) <= device.shared_bytes), None)
    if keys is None or call.rows > _LARGEST_GRID_YZ:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected a GPU with {_shared_bytes(call.head_dim, _KEYS[-1])} bytes of shared "
            f"memory a block and at most {_LARGEST_GRID_YZ} rows, found {device.shared_bytes} and {call.rows}: use the "
            "portable form (plugins off)"
        )
    tiles = -(-call.most_row_tokens * call.group // QUERIES)
    blocks = tiles * call.kv_heads * call.rows
    splits = min(max(1, device.multiprocessors // blocks), -(-call.longest // _LEAST_SPLIT))
    params = struct_type(FILE, "WideAttention")()
    call.fill(params.call)
    params.tiles, params.splits = tiles, splits
    pointers, overlap = call.pointers("call."), device.capability >= OVERLAP_SINCE
    # Of as many parts as any call can have, as builders ask for the workspace of some calls of a range.
    parts = device.multiprocessors * QUERIES
    sums = -(-parts * call.head_dim * 4 // _ALIGNMENT) * _ALIGNMENT
    if splits > 1:
        pointers |= {
            "outputs": PointerSource(Memory.WORKSPACE),
            "sums": PointerSource(Memory.WORKSPACE, offset=sums),
        }
    source, shared = _source(call, keys), _shared_bytes(call.head_dim, keys)
    grid = (tiles * call.kv_heads, splits, call.rows)
    launch = KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, shared, overlap=overlap)
    if splits == 1:
        return CallPlan((launch,), name=source.label)
    merge = KernelLaunch(
        _merge_source(call.dtype, call.head_dim),
        (grid[0], QUERIES, call.rows),
        (call.head_dim // _MERGED_COLUMNS, 1, 1),
        params,
        pointers,
        overlap=overlap,
    )
    return CallPlan((launch, merge), sums + parts * 8, source.label)


def wide_sources() -> Iterator[KernelSource]:
    """Both types, steps and forms of scores."""
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for keys in _KEYS:
            for softcap in (False, True):
                yield _wide_source(dtype, LATENT_DIM, keys, softcap)
        yield _merge_source(dtype, LATENT_DIM)


def _source(call: PagedCall, keys: int) -> KernelSource:
    return _wide_source(call.dtype, call.head_dim, keys, bool(call.call.attributes["softcap"]))


def _wide_source(dtype: DType, head_dim: int, keys: int, softcap: bool) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "KEYS": keys, "SOFTCAP": softcap}
    return KernelSource.of(FILE, "paged_attention_wide", defines)


def _merge_source(dtype: DType, head_dim: int) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "QUERIES": QUERIES}
    return KernelSource.of(MERGE_FILE, "paged_attention_wide_merge", defines)


def _shared_bytes(head_dim: int, keys: int) -> int:
    """Size of Shared in wide_heads.cu."""
    units = keys // 8
    weights = QUERIES * (units if units % 2 else units + 1) * 16  # TileLayout in common/mma.cuh
    return 2 * head_dim * (QUERIES + 2 * _STAGES * keys) + weights + _QUARTERS * QUERIES * 4
