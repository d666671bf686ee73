"""Kernels of ``update_ssm_state``: one pass over the state for one token a row, a chunked scan for more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, BYTE_TYPES, StateTile, access_bytes
from hybridge.trt_plugins.kernels.ops.draft_rows import is_speculative, plan_drafts
from hybridge.trt_plugins.kernels.ops.rows import ring_pointers, token_count
from hybridge.trt_plugins.kernels.ops.state_space import set_strides_and_limits, state_space_pointers
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import MMA, plan_prefill, prefill_sources
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.ring import RING, RINGS
from hybridge.trt_plugins.specs.state_8bit import STATE_SCALES

VARIANTS = (MMA,)
"""Prompts by the products that every GPU has, also where there are those of whole warpgroups."""
NAME = "update_ssm_state"
FILE = "update_ssm_state/decode_lanes.cu"
DRAFTS_FILE = "update_ssm_state/decode_drafts.cu"
RING_FILE = "update_ssm_state/decode_ring.cu"
_LARGEST_GRID_YZ = 65535
_THREADS = 64
_LANE_ACCESSES = 4  # in flight keep the memory busy; fewer where blocks are few
# Blocks per multiprocessor (measured: docs/explanation/kernels/update_ssm_state_decode.md): up to the first number all
# run at once and latency is the cost; from the second on there are enough of them for narrow accesses to share a block.
_FEW_BLOCKS = 8
_MANY_BLOCKS = 64
# Blocks a multiprocessor that prefetch while the kernel before still runs; more of them only ask for everything twice.
_PREFETCH_BLOCKS = 2
_ALL_BLOCKS = 2**31 - 1
_BYTE_PASSES = 8
_BYTE_BLOCKS = 2
_RING_THREADS = 128
_RING_PASSES = 4


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    head_dim and state_size are contiguous in every tensor, and heads too in the states.
    """
    if is_speculative(call):
        return plan_drafts(
            call, lambda rows: _Decode(rows, None).drafts(device), lambda rows: plan_prefill(rows, device)
        )
    if token_count(call) > 1:
        return plan_prefill(call, device)
    launch = decode_launch(call, device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """Decode: every type at the usual sizes, every fast size and odd ones in bfloat16; and the prefill's sources."""
    tile = StateTile(DType.BFLOAT16, DType.FLOAT32, 64, 128, ACCESS_BYTES, 2, 2 * _THREADS)
    base = _Variant(tile, DType.FLOAT32, DType.FLOAT32, ACCESS_BYTES, True, False)
    for dtype in CUDA_TYPES:
        for state in {DType.FLOAT32, dtype, *BYTE_TYPES}:
            typed = replace(base, tile=replace(tile, dtype=dtype, state=state))
            yield from (replace(typed, D=kind, bias=kind, gated=True).source() for kind in {DType.FLOAT32, dtype})
            single = replace(typed, tile=replace(typed.tile, passes=1, threads=_THREADS))
            yield single.source()
            if state not in BYTE_TYPES:
                yield from (variant.drafts_source() for variant in (typed, single))
                yield from (_ring_variant(replace(typed, gated=gated)).ring_source() for gated in (False, True))
                yield _ring_variant(typed).ring_source(dense=True)
    for state in BYTE_TYPES:
        yield replace(base, tile=replace(tile, state=state, passes=_BYTE_PASSES, threads=_THREADS)).source()
    for head_dim, state_size in ((80, 128), (96, 64), (128, 80), (256, 256), (64, 96), (8, 8), (72, 40)):
        for state in (DType.FLOAT32, DType.BFLOAT16, *BYTE_TYPES):
            sized = replace(tile, state=state, head_dim=head_dim, state_size=state_size)
            yield from (replace(base, tile=sized, group_bytes=size).source() for size in (2, ACCESS_BYTES))
            if state not in BYTE_TYPES:
                yield replace(base, tile=sized, group_bytes=2).drafts_source()
                yield _ring_variant(replace(base, tile=sized, group_bytes=2)).ring_source()
    yield from prefill_sources()


def decode_launch(call: OpCall, device: DeviceTraits, gate: TensorLayout | None = None) -> KernelLaunch:
    """One launch for at most one token a row.

    gate: y is multiplied by SiLU of it; [..., heads * head_dim], the caller adds its pointer as "gate".
    A call of the form with states of 8 bits has their scales, contiguous, as an input and as output 2.
    """
    return _Decode(call, gate).launch(device)


def ring_launch(call: OpCall, device: DeviceTraits, gate: TensorLayout | None = None) -> KernelLaunch:
    """As ``decode_launch``, of packed rows whose states have rings (specs/ring.py).

    The tensors of the rings come after the operator's own inputs, then the gate. UnsupportedError for states of 8 bits.
    """
    return _Decode(call, gate).ring(device)


def _ring_variant(variant: _Variant) -> _Variant:
    tile = variant.tile.with_passes(_RING_PASSES).with_threads(_RING_THREADS)
    return replace(variant, tile=tile)


@dataclass(frozen=True)
class _Variant:
    """The macros of decode_lanes.cu; group_bytes: the widest access to B and C."""

    tile: StateTile
    D: DType
    bias: DType
    group_bytes: int
    softplus: bool
    gated: bool

    def source(self) -> KernelSource:
        defines = {**self._defines(), "GATED": self.gated}
        return KernelSource.of(FILE, "update_ssm_state_decode", defines)

    def drafts_source(self) -> KernelSource:
        """The kernel that walks draft tokens; it has no gate and fetches nothing ahead."""
        return KernelSource.of(DRAFTS_FILE, "update_ssm_state_drafts", self._defines())

    def ring_source(self, dense: bool = False) -> KernelSource:
        """The kernel over states with rings."""
        defines = {**self._defines(), "GATED": self.gated, "DENSE": dense, "RING": RING}
        return KernelSource.of(RING_FILE, "update_ssm_state_ring", defines)

    def _defines(self) -> dict[str, object]:
        return {
            **self.tile.defines(),
            "D_T": self.D,
            "BIAS_T": self.bias,
            "GROUP_ACCESS": math.gcd(self.group_bytes // self.tile.dtype.itemsize, self.tile.state_access),
            "SOFTPLUS": self.softplus,
        }


class _Decode:
    """One call with at most one token a row."""

    def __init__(self, call: OpCall, gate: TensorLayout | None) -> None:
        self.call, self.gate = call, gate
        self.x, self.B, self.C, self.dt = (call.input(name) for name in ("x", "B", "C", "dt"))
        self.y, self.state, self.state_out = call.outputs[0], call.input("state"), call.outputs[1]
        tails = (("x", self.x, 1), ("B", self.B, 1), ("C", self.C, 1), ("dt", self.dt, 1), ("y", self.y, 1))
        for name, layout, axes in (*tails, ("state", self.state, 3), ("state_out", self.state_out, 3)):
            layout.need_dense_tail(name, axes)
        self.heads, self.head_dim, self.state_size = self.state.shape[1:]
        self.groups = self.B.shape[-2]
        call.spec.check_kernel_dims(
            {"heads": self.heads, "groups": self.groups, "head_dim": self.head_dim, "state_size": self.state_size}
        )
        self.rows = call.packed.rows if call.packed is not None else self.x.shape[0]
        if max(self.rows, self.heads) > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"{call.spec.name}: expected at most {_LARGEST_GRID_YZ} rows and heads, found {self.rows} and "
                f"{self.heads}: split the call"
            )

    def launch(self, device: DeviceTraits) -> KernelLaunch:
        tile, few = self._tile(device.multiprocessors)
        overlap = device.is_hopper_or_later
        params = self._params()
        if overlap and tile.state_bytes == ACCESS_BYTES and self.state.dtype not in BYTE_TYPES:
            params.prefetch_blocks = _ALL_BLOCKS if few else _PREFETCH_BLOCKS * device.multiprocessors
        return self._launch(tile, self._variant(tile).source(), params, device)

    def drafts(self, device: DeviceTraits) -> KernelLaunch:
        """A few tokens a row, walked, with a state after each; UnsupportedError for states of 8 bits."""
        self._need_wide_states("draft tokens")
        tile, _ = self._tile(device.multiprocessors)
        return self._launch(tile, self._variant(tile).drafts_source(), self._params(), device)

    def ring(self, device: DeviceTraits) -> KernelLaunch:
        """One launch over states with rings; UnsupportedError for states of 8 bits."""
        self._need_wide_states("a ring")
        width = access_bytes(self.state, self.state_out, axes=1)
        one = StateTile(self.x.dtype, self.state.dtype, self.head_dim, self.state_size, width, 1, _RING_THREADS)
        variant = _ring_variant(self._variant(one))
        params = struct_type(RING_FILE, "SsmRing")()
        self._fill(params.decode)
        params.heads, params.groups = self.heads, self.groups
        launch = self._launch(variant.tile, variant.ring_source(self.call.packed is None), params, device)
        pointers = ring_pointers(self.call.spec, launch.pointers)
        if self.gate is not None:
            pointers["decode.gate"] = PointerSource(Memory.INPUT, len(self.call.spec.inputs) + len(RINGS[NAME]) + 1)
        return replace(launch, pointers=pointers)

    def _need_wide_states(self, what: str) -> None:
        if self.state.dtype in BYTE_TYPES:
            raise UnsupportedError(
                f"{self.call.spec.name}: expected {what} with states of 16 or 32 bits, found "
                f"{self.state.dtype.value}: use another type of state"
            )

    def _variant(self, tile: StateTile) -> _Variant:
        D, bias = self.call.input("D").dtype, self.call.input("dt_bias").dtype
        group_bytes = access_bytes(self.B, self.C, axes=len(self.B.shape) - 1)
        softplus = bool(self.call.attributes["dt_softplus"])
        return _Variant(tile, D, bias, group_bytes, softplus, self.gate is not None)

    def _launch(self, tile: StateTile, source: KernelSource, params: Any, device: DeviceTraits) -> KernelLaunch:
        grid = (self.heads // self.groups * tile.parts, self.groups, self.rows)
        overlap = device.is_hopper_or_later
        return KernelLaunch(source, grid, (tile.threads, 1, 1), params, self._pointers(), overlap=overlap)

    def _tile(self, multiprocessors: int) -> tuple[StateTile, bool]:
        """The partition of the state, and whether all blocks run at once."""
        width = access_bytes(self.state, self.state_out, axes=1)
        one = StateTile(self.x.dtype, self.state.dtype, self.head_dim, self.state_size, width, 1, _THREADS)

        def blocks(tile: StateTile) -> float:
            return self.rows * self.heads * tile.parts / multiprocessors

        if self.state.dtype in BYTE_TYPES:
            # The fixed work of a thread costs more than its accesses here.
            most = one.with_passes(_BYTE_PASSES)
            return (most if blocks(most) >= _BYTE_BLOCKS else one), False
        two = one.with_passes(2)
        if blocks(two) <= _FEW_BLOCKS:
            return two.with_threads(2 * _THREADS), True
        if one.accesses >= _LANE_ACCESSES:
            return one, False
        return (two if blocks(two) >= _MANY_BLOCKS else replace(one, threads=2 * _THREADS)), False

    def _params(self) -> Any:
        params = struct_type(FILE, "SsmDecode")()
        self._fill(params)
        return params

    def _fill(self, params: Any) -> None:
        strided = [("x", self.x, 2), ("B", self.B, 2), ("C", self.C, 2), ("y", self.y, 2), ("dt", self.dt, 1)]
        if self.gate is not None:
            strided.append(("gate", self.gate, 1))
        set_strides_and_limits(params, self.call, strided)
        params.x_head, params.y_head = self.x.strides[-2], self.y.strides[-2]
        if self.state.dtype in BYTE_TYPES:
            params.scale_slot = params.scale_out_slot = self.heads * self.head_dim
        params.rows.rows, params.rows.time = self.rows, 1
        params.heads_per_group = self.heads // self.groups

    def _pointers(self) -> dict[str, PointerSource]:
        pointers = state_space_pointers(self.call)
        if self.state.dtype in BYTE_TYPES:
            scales = PointerSource(Memory.INPUT, self.call.spec.input_index(STATE_SCALES))
            pointers |= {"scale": scales, "scale_out": PointerSource(Memory.OUTPUT, 2)}
        return pointers
