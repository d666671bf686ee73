"""The kernels of ``paged_attention`` for the latents of multi-head latent attention: keys that are the values too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.architectures import HOPPER
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.paged_attention import LATENT_DIM

FILE, MERGE_FILE = "paged_attention/wide_heads.cu", "paged_attention/wide_merge.cu"
WGMMA_FILE = "paged_attention/wide_wgmma.cu"
QUERIES = 32  # of a tile
_THREADS, _QUARTERS = 256, 4
# Hopper: steps in shared memory, tiles of weights, warps of a group.
_WGMMA_THREADS, _WGMMA_SLOTS, _WGMMA_WEIGHTS, _GROUP_WARPS = 512, 2, 2, 4
_MOST_SPLITS = 512
_TILE = 32
# Joining: threads of a block, columns of a thread, splits that a thread takes alone, threads that share more of them:
# where there are many queries, and where there are so few for each multiprocessor.
_MERGE_THREADS, _MERGE_COLUMNS, _FEW_SPLITS = 576, 4, 4
_SHARES, _MORE_SHARES, _FEW_QUERIES = 4, 16, 0.5
_LEAST_SPLIT = 64  # positions
_LARGEST_GRID_YZ = 65535
_ALIGNMENT = 256  # of the parts of a workspace


@dataclass(frozen=True)
class _Form:
    """Macros of a kernel. keys: positions of a step; slots: tiles of positions in shared memory.

    hopper: the kernel for Hopper's warpgroup products, whose tiles are steps.
    """

    keys: int
    slots: int
    hopper: bool = False

    @property
    def threads(self) -> int:
        return _WGMMA_THREADS if self.hopper else _THREADS

    def source(self, dtype: DType, head_dim: int, softcap: bool) -> KernelSource:
        defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "QUERIES": QUERIES, "KEYS": self.keys}
        if self.hopper:
            return KernelSource.of(WGMMA_FILE, "paged_attention_wide_wgmma", defines | {"SOFTCAP": softcap})
        return KernelSource.of(FILE, "paged_attention_wide", defines | {"SLOTS": self.slots, "SOFTCAP": softcap})

    def shared_bytes(self, head_dim: int) -> int:
        """Size of Shared in wide_wgmma_shared.cuh, or in wide_heads.cu."""
        if self.hopper:
            tiles = 2 * head_dim * (self.slots * self.keys + QUERIES) + 2 * _WGMMA_WEIGHTS * QUERIES * self.keys
            numbers = 4 * (QUERIES * (_WGMMA_WEIGHTS + _GROUP_WARPS + 1) + _WGMMA_WEIGHTS)
            return tiles + numbers + 8 * (4 * self.slots + 2 * _WGMMA_WEIGHTS + 1)
        row, units = 2 * (head_dim + 8), self.keys // 8
        queries, scores = row * QUERIES, 4 * _QUARTERS * QUERIES * (self.keys + 8)
        ring = row * self.slots * min(self.keys, _TILE)
        weights = QUERIES * (units + (units % 2 == 0 and units % 8 > 0)) * 16  # TileLayout in common/mma.cuh
        return max(queries, scores) + ring + weights + 8 * QUERIES


_FORMS = (_Form(64, 5), _Form(32, 3), _Form(16, 3))  # the first that shared memory holds
_WGMMA_FORM = _Form(64, _WGMMA_SLOTS, hopper=True)


def plan_wide(call: PagedCall, device: DeviceTraits) -> CallPlan:
    """The launches of rows of any number of tokens; UnsupportedError for float32, and for too little shared memory.

    Positions are split between blocks where there are fewer tiles of queries than multiprocessors. No more tokens than
    rows are planned as rows of one token each.
    """
    form = _supported_form(call, device)
    by_token = call.decodes_every_token
    tokens, rows = (1, call.tokens) if by_token else (call.most_row_tokens, call.rows)
    tiles = -(-tokens * call.group // QUERIES)
    blocks = tiles * call.kv_heads * rows
    splits = min(max(1, device.multiprocessors // blocks), -(-call.longest // _LEAST_SPLIT), _MOST_SPLITS)
    params = struct_type(FILE, "WideAttention")()
    call.fill(params.call)
    params.tiles, params.splits, params.by_token = tiles, splits, by_token
    pointers, overlap = call.pointers("call."), device.is_hopper_or_later
    # Of as many parts as any call can have, as builders ask for the workspace of some calls of a range.
    parts = device.multiprocessors * QUERIES
    sums = -(-parts * call.head_dim * 4 // _ALIGNMENT) * _ALIGNMENT
    if splits > 1:
        pointers |= {
            "outputs": PointerSource(Memory.WORKSPACE),
            "sums": PointerSource(Memory.WORKSPACE, offset=sums),
        }
    source = form.source(call.dtype, call.head_dim, bool(call.call.attributes["softcap"]))
    grid, shared = (tiles * call.kv_heads, splits, rows), form.shared_bytes(call.head_dim)
    launch = KernelLaunch(source, grid, (form.threads, 1, 1), params, pointers, shared, overlap=overlap)
    if splits == 1:
        return CallPlan((launch,), name=source.label)
    shares = _shares(splits, blocks * QUERIES / device.multiprocessors)
    groups = QUERIES * call.head_dim * shares // (_MERGE_COLUMNS * _MERGE_THREADS)
    merge = KernelLaunch(
        _merge_source(call.dtype, call.head_dim, shares),
        (grid[0], groups, rows),
        (_MERGE_THREADS, 1, 1),
        params,
        pointers,
        overlap=overlap,
    )
    return CallPlan((launch, merge), sums + parts * 8, source.label)


def _supported_form(call: PagedCall, device: DeviceTraits) -> _Form:
    """The form for ``call``; UnsupportedError where it has none."""
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
    form = _form(call, device)
    if form is None or call.rows > _LARGEST_GRID_YZ:
        raise UnsupportedError(
            f"{call.call.spec.name}: expected a GPU with {_FORMS[-1].shared_bytes(call.head_dim)} bytes of shared "
            f"memory a block and at most {_LARGEST_GRID_YZ} rows, found {device.shared_bytes} and {call.rows}: use the "
            "portable form (plugins off)"
        )
    return form


def wide_sources() -> Iterator[KernelSource]:
    """Both types, every form, with and without bounded scores."""
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for form, softcap in itertools.product((*_FORMS, _WGMMA_FORM), (False, True)):
            yield form.source(dtype, LATENT_DIM, softcap)
        for shares in (1, _SHARES, _MORE_SHARES):
            yield _merge_source(dtype, LATENT_DIM, shares)


def _form(call: PagedCall, device: DeviceTraits) -> _Form | None:
    """The form for a call; None where the shared memory is too small for each."""
    forms = (_WGMMA_FORM, *_FORMS) if device.capability == HOPPER else _FORMS
    return next((form for form in forms if form.shared_bytes(call.head_dim) <= device.shared_bytes), None)


def _shares(splits: int, queries: float) -> int:
    """Threads that share the splits of a column; queries: for each multiprocessor."""
    if splits <= _FEW_SPLITS:
        return 1
    return _MORE_SHARES if queries <= _FEW_QUERIES else _SHARES


def _merge_source(dtype: DType, head_dim: int, shares: int) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "QUERIES": QUERIES, "SHARES": shares}
    more = {"FEW_SPLITS": _FEW_SPLITS, "MOST_SPLITS": _MOST_SPLITS}
    return KernelSource.of(MERGE_FILE, "paged_attention_wide_merge", defines | more)
