"""Kernels of ``update_ssm_state``: one pass over the state for one token a row, a chunked scan for more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from artifact.dtypes import DType
from artifact.errors import UnsupportedError
from trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from trt_plugins.kernels.layout import TensorLayout
from trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill, prefill_sources
from trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from trt_plugins.kernels.structs import struct_type

FILE = "update_ssm_state/decode_lanes.cu"
_ACCESS_BYTES = 16
_LANE_ELEMENTS = 16  # of a row in one lane; as many of B and of C are kept beside them
_WARP = 32
_THREADS = 64
_LARGEST_GRID_YZ = 65535
_OVERLAP_SINCE = (9, 0)
# A lane's accesses in flight, and how many blocks a multiprocessor should have before blocks take more rows each.
_MOST_ACCESSES = 4
_FULL_BLOCKS = 4


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    head_dim and state_size are contiguous in every tensor, and heads too in the states. Addresses of the states are
    multiples of 16 bytes.
    """
    if _time(call) > 1:
        return plan_prefill(call, device)
    launch = _Decode(call).launch(device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """Decode: every type at the usual sizes, every fast size and odd ones in bfloat16; and the prefill's sources."""
    base = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128, 16, 16, True, 2, True)
    for dtype in CUDA_TYPES:
        for state in {DType.FLOAT32, dtype}:
            for parameter in {DType.FLOAT32, dtype}:
                typed = replace(base, dtype=dtype, state=state, D=parameter, bias=parameter)
                yield from (replace(typed, passes=passes).source() for passes in (1, 2, 4))
    for head_dim, state_size in ((80, 128), (96, 64), (128, 80), (256, 256), (64, 96), (8, 8), (72, 40)):
        for state in (DType.FLOAT32, DType.BFLOAT16):
            sized = replace(base, state=state, head_dim=head_dim, state_size=state_size)
            yield from (replace(sized, group_bytes=size).source() for size in (2, 16))
    yield from prefill_sources()


@dataclass(frozen=True)
class _Variant:
    """The macros of decode_lanes.cu; state_bytes and group_bytes: the widest access to the state, and to B and C."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    head_dim: int
    state_size: int
    state_bytes: int
    group_bytes: int
    softplus: bool
    passes: int
    prefetch: bool

    @property
    def state_access(self) -> int:
        """Elements of one access to a row of the state."""
        return math.gcd(self.state_bytes // self.state.itemsize, self.state_size)

    @property
    def group_access(self) -> int:
        """Elements of one access to B or C: at most those that one access to the state meets."""
        return math.gcd(self.group_bytes // self.dtype.itemsize, self.state_access)

    @property
    def lanes(self) -> int:
        """Lanes of a row: the fewest that hold at most _LANE_ELEMENTS of it each."""
        units = self.state_size // self.state_access
        units_of_lane = max(1, _LANE_ELEMENTS // self.state_access)
        return min(_WARP, 1 << (-(-units // units_of_lane) - 1).bit_length())

    @property
    def rows_of_block(self) -> int:
        return _THREADS // self.lanes * self.passes

    @property
    def accesses_of_pass(self) -> int:
        return -(-self.state_size // (self.state_access * self.lanes))

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": CUDA_TYPES[self.dtype],
            "STATE_T": CUDA_TYPES[self.state],
            "D_T": CUDA_TYPES[self.D],
            "BIAS_T": CUDA_TYPES[self.bias],
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
            "LANES": self.lanes,
            "STATE_ACCESS": self.state_access,
            "GROUP_ACCESS": self.group_access,
            "SOFTPLUS": int(self.softplus),
            "PASSES": self.passes,
            "THREADS": _THREADS,
            "HEADS": 1,
            "LATE": 2,
            "PREFETCH": int(self.prefetch),
        }
        return KernelSource(FILE, "update_ssm_state_decode", tuple((name, str(text)) for name, text in defines.items()))


class _Decode:
    """One call with at most one token a row."""

    def __init__(self, call: OpCall) -> None:
        self.call = call
        self.x, self.B, self.C, self.dt = (_one_token(call, call.input(name)) for name in ("x", "B", "C", "dt"))
        self.y = _one_token(call, call.outputs[0])
        self.state, self.state_out = call.input("state"), call.outputs[1]
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
                f"update_ssm_state: expected at most {_LARGEST_GRID_YZ} rows and heads, found {self.rows} and "
                f"{self.heads}: split the call"
            )

    def launch(self, device: DeviceTraits) -> KernelLaunch:
        variant = self._variant(device)
        parts = -(-self.head_dim // variant.rows_of_block)
        grid = (self.heads // self.groups * parts, self.groups, self.rows)
        overlap = device.capability >= _OVERLAP_SINCE
        return KernelLaunch(
            variant.source(), grid, (_THREADS, 1, 1), self._params(), _pointers(self.call), overlap=overlap
        )

    def _variant(self, device: DeviceTraits) -> _Variant:
        """Blocks of one pass, doubled while that still leaves every multiprocessor enough of them."""
        call = self.call
        variant = _Variant(
            self.x.dtype,
            self.state.dtype,
            call.input("D").dtype,
            call.input("dt_bias").dtype,
            self.head_dim,
            self.state_size,
            _access_bytes(self.state, self.state_out, axes=1),
            _access_bytes(self.B, self.C, axes=3),
            softplus=bool(call.attributes["dt_softplus"]),
            passes=1,
            prefetch=False,
        )
        while (
            variant.rows_of_block < self.head_dim
            and 2 * variant.passes * variant.accesses_of_pass <= _MOST_ACCESSES
            and self.rows * self.heads * -(-self.head_dim // (2 * variant.rows_of_block))
            >= _FULL_BLOCKS * device.multiprocessors
        ):
            variant = replace(variant, passes=2 * variant.passes)
        return variant

    def _params(self) -> Any:
        params = struct_type(FILE, "SsmDecode")()
        params.x_row, params.x_token, params.x_head = self.x.strides[:3]
        params.B_row, params.B_token, params.B_group = self.B.strides[:3]
        params.C_row, params.C_token, params.C_group = self.C.strides[:3]
        params.dt_row, params.dt_token = self.dt.strides[:2]
        params.y_row, params.y_token, params.y_head = self.y.strides[:3]
        params.state_slot, params.state_out_slot = self.state.strides[0], self.state_out.strides[0]
        params.rows.rows, params.rows.time = self.rows, 1
        params.heads_per_group = self.heads // self.groups
        attributes = self.call.attributes
        params.dt_min, params.dt_max = attributes["time_step_min"], attributes["time_step_max"]
        return params


def _time(call: OpCall) -> int:
    """An upper bound of the tokens of a row."""
    if call.packed is not None:
        return call.packed.max_row_tokens
    shape = call.input("x").shape
    return shape[1] if len(shape) == 4 else 1


def _one_token(call: OpCall, layout: TensorLayout) -> TensorLayout:
    """The layout with a row and a token axis in front: the stride of the one that it lacks is 0."""
    token_axes = 2 if len(call.input("x").shape) == 4 else 1
    if call.packed is not None:
        shape, strides = (1, *layout.shape), (0, *layout.strides)
    elif token_axes == 2:
        shape, strides = layout.shape, layout.strides
    else:
        shape, strides = (layout.shape[0], 1, *layout.shape[1:]), (layout.strides[0], 0, *layout.strides[1:])
    return TensorLayout(layout.dtype, shape, strides, layout.alignment)


def _access_bytes(*layouts: TensorLayout, axes: int) -> int:
    """Bytes of the widest access that stays aligned at every index of the first ``axes`` axes."""
    item = layouts[0].dtype.itemsize
    strides = [stride * item for layout in layouts for stride in layout.strides[:axes]]
    return math.gcd(_ACCESS_BYTES, *(layout.alignment for layout in layouts), *strides)


def _pointers(call: OpCall) -> dict[str, PointerSource]:
    spec = call.spec
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias", "state")
    pointers = {name: PointerSource(Memory.INPUT, spec.input_index(name)) for name in names}
    pointers |= {"y": PointerSource(Memory.OUTPUT, 0), "state_out": PointerSource(Memory.OUTPUT, 1)}
    if call.packed is None:
        pointers["rows.context_lengths"] = PointerSource(Memory.INPUT, spec.input_index("context_lengths"))
        return pointers
    pointers["rows.query_start_loc"] = PointerSource(Memory.PACKED, 0)
    if call.packed.has_state_indices:
        pointers["rows.state_indices"] = PointerSource(Memory.PACKED, 1)
    return pointers
