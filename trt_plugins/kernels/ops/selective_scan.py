"""Kernels of ``selective_scan``: all walk through the tokens of a row, with the state in registers.

The tokens of prompts come through shared memory, in tiles; a few tokens are loaded by the threads that need them.
Prompts that are too few to fill the GPU are cut into chunks, whose states a kernel of their own computes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, access_bytes
from hybridge.trt_plugins.kernels.ops.draft_rows import is_speculative, plan_drafts
from hybridge.trt_plugins.kernels.ops.rows import token_count
from hybridge.trt_plugins.kernels.ops.state_space import set_strides_and_limits, state_space_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

TOKENS_FILE = "selective_scan/walk_tokens.cu"
TILES_FILE = "selective_scan/walk_tiles.cu"
ROWS_FILE = "selective_scan/step_rows.cu"
_THREADS, _FEW_THREADS = 128, 64
# With many blocks of one token a row: rows that a thread loads at once; blocks of a multiprocessor, which registers are
# to allow; the most rows of a block with which all blocks run at once; rows of a block where they do not.
_ROWS_OF_THREAD, _ROWS_BLOCKS, _ONE_WAVE_ROWS, _BLOCK_ROWS = 2, 8, 12, 8
_FEW_BLOCKS, _MANY_BLOCKS, _SEVERAL_ROWS_BLOCKS = 2, 8, 16  # per multiprocessor
# Lanes of a channel: fewer have less to reduce for y, more need fewer registers each.
_LEAST_LANES, _MOST_LANES, _MOST_UNIT, _WIDEST_UNIT = 4, 8, 4, 8
# With many blocks: so few lanes that the work that each lane repeats for a token costs less than the accesses.
_FEW_LANES, _ROW_LANES, _WIDE_LANES = 2, 4, 16  # lanes, those of several rows, and the largest state_size with them
_TILE, _SMALL_TILE = 32, 16
_USUAL_STATE_SIZE = 16  # other ones, and few lanes, have small tiles, for registers
_FEW_LANES_BLOCKS = 6  # of a multiprocessor, with which few lanes fill it
# Prompts: blocks of a multiprocessor that registers are to allow, for lanes of few elements and for others.
_TILES_BLOCKS, _WIDE_TILES_BLOCKS, _FEW_ELEMENTS = 4, 3, 4
# Rows are cut into chunks where whole ones make fewer blocks of a multiprocessor than the first number, into as many as
# make the second. Each exponential is then computed twice.
_UNCUT_BLOCKS, _CUT_BLOCKS, _LEAST_CHUNK_TOKENS = 1.5, 6, 128
_LARGEST_GRID_YZ = 65535


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    Channels and state_size are contiguous in every tensor.
    """
    if is_speculative(call):
        return plan_drafts(call, lambda rows: _Scan(rows).tokens(device, drafts=True), lambda rows: plan(rows, device))
    scan = _Scan(call)
    if token_count(call) > 1:
        return scan.prompts(device)
    launch = scan.tokens(device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """Every type at the usual size, every size in bfloat16, and odd strides."""
    base = _Variant(
        DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 16, _MOST_UNIT, _MOST_UNIT, True, _THREADS
    )
    for dtype in CUDA_TYPES:
        for state in {DType.FLOAT32, dtype}:
            for side in {DType.FLOAT32, dtype}:
                typed = replace(base, dtype=dtype, state=state, D=side, bias=side)
                yield from typed.sources()
                few = replace(typed, most_lanes=_FEW_LANES)
                yield from few.sources(tiles=False)
                unit = min(_WIDEST_UNIT, ACCESS_BYTES // state.itemsize)
                for units in (unit, 1):
                    group_unit = min(units, ACCESS_BYTES // dtype.itemsize)
                    yield replace(few, unit=units, group_unit=group_unit, most_lanes=_ROW_LANES).rows()
    yield from replace(base, state_size=1, unit=1, group_unit=1, softplus=False).sources()
    for size in range(8, 65, 8):
        for unit in (1, math.gcd(_MOST_UNIT, size // _LEAST_LANES)):
            yield from replace(base, state_size=size, unit=unit, group_unit=unit).sources()
    yield from replace(base, softplus=False, group_unit=1, threads=_FEW_THREADS).sources(tiles=False)


@dataclass(frozen=True)
class _Variant:
    """The macros of the kernels; unit, group_unit: elements of one access to the state, and to B and C."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    state_size: int
    unit: int
    group_unit: int
    softplus: bool
    threads: int
    most_lanes: int = _MOST_LANES

    @property
    def lanes(self) -> int:
        """Threads of one channel."""
        return math.gcd(self.state_size // self.unit, self.most_lanes)

    @property
    def channels(self) -> int:
        """Channels of one block."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Tokens of a tile."""
        few_registers = self.state_size == _USUAL_STATE_SIZE and self.lanes >= _LEAST_LANES
        return _TILE if few_registers else _SMALL_TILE

    def tokens(self, drafts: bool) -> KernelSource:
        """The kernel for a few tokens."""
        return KernelSource.of(TOKENS_FILE, "selective_scan_walk_tokens", {**self._defines(), "DRAFTS": drafts})

    def rows(self) -> KernelSource:
        """The kernel for one token in each of several rows."""
        more = {"ROWS": _ROWS_OF_THREAD, "BLOCK_ROWS": _ONE_WAVE_ROWS, "BLOCKS": _ROWS_BLOCKS}
        defines = {**self._defines(), **more}
        return KernelSource.of(ROWS_FILE, "selective_scan_step_rows", defines)

    def tiles(self, only_states: bool = False) -> KernelSource:
        """The kernel for many tokens."""
        few = self.state_size // self.lanes <= _FEW_ELEMENTS
        blocks = _TILES_BLOCKS if few else _WIDE_TILES_BLOCKS
        defines = {**self._defines(), "TILE": self.tile, "ONLY_STATES": only_states, "BLOCKS": blocks}
        return KernelSource.of(TILES_FILE, "selective_scan_walk_tiles", defines)

    def sources(self, tiles: bool = True) -> Iterator[KernelSource]:
        """The kernels of these macros."""
        yield from (self.tokens(drafts=False), self.tokens(drafts=True))
        if tiles:
            yield from (self.tiles(), self.tiles(only_states=True))
            if self.state_size == _USUAL_STATE_SIZE:
                yield replace(self, most_lanes=_FEW_LANES).tiles()

    def _defines(self) -> dict[str, object]:
        return {
            "DATA_T": self.dtype,
            "STATE_T": self.state,
            "D_T": self.D,
            "BIAS_T": self.bias,
            "STATE_SIZE": self.state_size,
            "LANES": self.lanes,
            "STATE_ACCESS": self.unit,
            "GROUP_ACCESS": self.group_unit,
            "SOFTPLUS": self.softplus,
            "THREADS": self.threads,
        }


class _Scan:
    """One call with the sizes that choose its kernel."""

    def __init__(self, call: OpCall) -> None:
        self.call = call
        self.x, self.B, self.C, self.dt = (call.input(name) for name in ("x", "B", "C", "dt"))
        self.y, self.state, self.state_out = call.outputs[0], call.input("state"), call.outputs[1]
        tails = (("x", self.x, 1), ("B", self.B, 1), ("C", self.C, 1), ("dt", self.dt, 1), ("y", self.y, 1))
        for name, layout, axes in (
            *tails,
            ("A", call.input("A"), 2),
            ("state", self.state, 3),
            ("state_out", self.state_out, 3),
        ):
            layout.need_dense_tail(name, axes)
        self.channels, self.state_size = self.state.shape[2:]
        self.groups = self.B.shape[-2]
        call.spec.check_kernel_dims({"channels": self.channels, "groups": self.groups, "state_size": self.state_size})
        self.rows = call.packed.rows if call.packed is not None else self.x.shape[0]
        if max(self.rows, self.groups) > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"{call.spec.name}: expected at most {_LARGEST_GRID_YZ} rows and groups, found {self.rows} and "
                f"{self.groups}: split the call"
            )

    def tokens(self, device: DeviceTraits, drafts: bool = False) -> KernelLaunch:
        """At most a few tokens per row."""
        variant = self._variant(_THREADS)
        blocks = self.rows * _blocks(self.channels, variant.channels) / device.multiprocessors
        if blocks < _FEW_BLOCKS:
            variant = replace(variant, threads=_FEW_THREADS)
        elif blocks >= _MANY_BLOCKS and self.state_size <= _WIDE_LANES:
            if not drafts and blocks >= _SEVERAL_ROWS_BLOCKS and self.channels // self.groups >= _THREADS:
                return self._several_rows(device)
            variant = replace(variant, most_lanes=_FEW_LANES)
        grid = (_blocks(self.channels, variant.channels), self.rows, 1)
        return self._launch(variant.tokens(drafts), grid, variant.threads, device)

    def _several_rows(self, device: DeviceTraits) -> KernelLaunch:
        """One token per row, several rows in a block."""
        variant = replace(self._variant(_THREADS, _WIDEST_UNIT, least_lanes=1), most_lanes=_ROW_LANES)
        across = _blocks(self.channels // self.groups, variant.channels)
        at_once = _ROWS_BLOCKS * device.multiprocessors
        rows = _blocks(_blocks(across * self.groups * self.rows, at_once), _ROWS_OF_THREAD) * _ROWS_OF_THREAD
        rows = rows if rows <= _ONE_WAVE_ROWS else _BLOCK_ROWS
        grid = (across, self.groups, _blocks(self.rows, rows))
        launch = self._launch(variant.rows(), grid, variant.threads, device)
        launch.params.block_rows = rows
        return launch

    def prompts(self, device: DeviceTraits) -> CallPlan:
        """Any number of tokens per row."""
        variant = self._variant(_THREADS)
        grid = (_blocks(self.channels // self.groups, variant.channels), self.groups, self.rows)
        blocks = math.prod(grid) / device.multiprocessors
        if blocks >= _FEW_LANES_BLOCKS and self.state_size == _USUAL_STATE_SIZE:
            variant = replace(variant, most_lanes=_FEW_LANES)
            grid = (_blocks(self.channels // self.groups, variant.channels), *grid[1:])
        chunks, tokens = self._chunks(blocks, variant)
        launches = [self._launch(variant.tiles(), (*grid[:2], self.rows * chunks), variant.threads, device)]
        states = 4 * self.rows * chunks * self.channels * self.state_size
        if chunks > 1:
            launches.insert(0, replace(launches[0], source=variant.tiles(only_states=True)))
            work = {
                "chunk_states": PointerSource(Memory.WORKSPACE),
                "chunk_steps": PointerSource(Memory.WORKSPACE, offset=states),
            }
            launches = [replace(launch, pointers={**launch.pointers, **work}) for launch in launches]
        for launch in launches:
            launch.params.chunks, launch.params.chunk_tokens = chunks, tokens
        workspace = states + states // self.state_size if chunks > 1 else 0
        return CallPlan(tuple(launches), workspace, launches[-1].source.label)

    def _chunks(self, blocks: float, variant: _Variant) -> tuple[int, int]:
        """Chunks of the longest row and tokens of each, for so many blocks of whole rows a multiprocessor."""
        time = token_count(self.call)
        if blocks >= _UNCUT_BLOCKS:
            return 1, time
        chunks = min(math.ceil(_CUT_BLOCKS / blocks), time // _LEAST_CHUNK_TOKENS, _LARGEST_GRID_YZ // self.rows)
        if chunks < 2:
            return 1, time
        tokens = _blocks(_blocks(time, chunks), variant.tile) * variant.tile
        return _blocks(time, tokens), tokens

    def _variant(self, threads: int, most_unit: int = _MOST_UNIT, least_lanes: int = _LEAST_LANES) -> _Variant:
        state, A_bytes = self.state.dtype, self.call.input("A").alignment
        aligned = access_bytes(self.state, self.state_out, axes=1) // state.itemsize
        if A_bytes < ACCESS_BYTES:
            aligned = math.gcd(aligned, A_bytes // DType.FLOAT32.itemsize)
        unit = math.gcd(aligned, most_unit, self.state_size // least_lanes or 1)
        group_unit = math.gcd(access_bytes(self.B, self.C, axes=len(self.B.shape) - 1) // self.x.dtype.itemsize, unit)
        D, bias = self.call.input("D").dtype, self.call.input("dt_bias").dtype
        softplus = bool(self.call.attributes["dt_softplus"])
        return _Variant(self.x.dtype, state, D, bias, self.state_size, unit, group_unit, softplus, threads)

    def _launch(
        self, source: KernelSource, grid: tuple[int, int, int], threads: int, device: DeviceTraits
    ) -> KernelLaunch:
        overlap = device.is_hopper_or_later
        params, pointers = self._params(source), state_space_pointers(self.call)
        return KernelLaunch(source, grid, (threads, 1, 1), params, pointers, overlap=overlap)

    def _params(self, source: KernelSource) -> Any:
        params = struct_type(source.file, "SelectiveScan")()
        strided = (("x", self.x, 1), ("B", self.B, 2), ("C", self.C, 2), ("dt", self.dt, 1), ("y", self.y, 1))
        set_strides_and_limits(params, self.call, strided)
        params.rows.rows, params.rows.time = self.rows, token_count(self.call)
        params.channels, params.channels_per_group = self.channels, self.channels // self.groups
        return params


def _blocks(count: int, of: int) -> int:
    return -(-count // of)
