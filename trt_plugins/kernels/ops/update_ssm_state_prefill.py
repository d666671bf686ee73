"""Kernels of ``update_ssm_state`` for several tokens a row: chunks of 64 tokens as matrices on tensor cores.

Every length runs in chunks; there is no loop over tokens. docs/kernels/update_ssm_state_prefill.md has the measurements
behind the choices here.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from artifact.dtypes import DType
from artifact.errors import UnsupportedError
from trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from trt_plugins.kernels.layout import TensorLayout
from trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from trt_plugins.kernels.structs import struct_type

CHUNK = 64
MMA_FILE = "update_ssm_state/prefill_mma.cu"
_MMA_ENTRY = "update_ssm_state_prefill_mma"
_MMA_WARPS = 4
_MMA_THREADS = 32 * _MMA_WARPS
_WHOLE, _STATES, _OUTPUTS = 0, 1, 2  # PASS in prefill_mma.cu
_LARGEST_GRID_YZ = 65535
_OVERLAP_SINCE = (9, 0)
# Most fp32 registers of a thread for the state and y accumulators, beside those for scores, fragments and addresses.
_ACCUMULATORS = {2: 96, 4: 64}
# A row's chunks are computed in segments at the same time where blocks would leave multiprocessors idle. Each segment
# but the first costs a pass over its tokens for the states, which is worth it from this many chunks a segment on.
_LEAST_SEGMENT_CHUNKS = 4
_MOST_SEGMENTS = 8
_BLOCKS_OF_MULTIPROCESSOR = 2
_DECAY_BYTES = 4 * (4 * CHUNK + 4)


def plan_prefill(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call`` with any number of tokens a row.

    UnsupportedError for sizes outside of the operator's limits, tensors whose last axes are not contiguous, or more
    than 65,535 rows.
    """
    scan = _Scan.of(call)
    variant = _mma_variant(scan, device)
    segments = _segments(scan, variant, device)
    passes = (_WHOLE,) if segments == 1 else (_STATES, _OUTPUTS)
    launches = tuple(_mma_launch(scan, variant, which, segments, device) for which in passes)
    return CallPlan(launches, _scratch_bytes(scan, variant, segments), launches[-1].source.label)


def prefill_sources() -> Iterator[KernelSource]:
    """Every type at the usual sizes, every pass, the fast head dims and both loads."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128, 64, 2, True)
    for dtype, which in itertools.product(CUDA_TYPES, (_WHOLE, _STATES, _OUTPUTS)):
        for state in {DType.FLOAT32, dtype}:
            yield _with_slice(replace(common, dtype=dtype, state=state, D=dtype, bias=dtype), 64).source(which)
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (64, 256), (256, 256), (8, 8), (72, 40)):
        for aligned in (True, False):
            sized = replace(common, head_dim=head_dim, state_size=state_size, aligned=aligned)
            yield _with_slice(sized, head_dim).source(_WHOLE)


@dataclass(frozen=True)
class _Variant:
    """What the macros of prefill_mma.cu choose."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    head_dim: int
    state_size: int
    slice: int
    stages: int
    aligned: bool

    @property
    def slices(self) -> int:
        return _blocks(self.head_dim, self.slice)

    @property
    def state_registers(self) -> int:
        """Accumulators of the state of one thread."""
        return _blocks(_round_up(self.state_size, 16) // 16, _MMA_WARPS) * self.slice // 2

    @property
    def shared_bytes(self) -> int:
        """Size of PrefillShared in prefill_tiles.cuh."""
        wide = _pitch(_round_up(self.state_size, 16), self.dtype) * self.dtype.itemsize
        narrow = _pitch(self.slice, self.dtype) * self.dtype.itemsize
        stage = CHUNK * (2 * wide + narrow)
        state = _round_up(self.state_size, 16) * narrow
        return _round_up(self.stages * _round_up(stage, 128) + state + 2 * _DECAY_BYTES, 128)

    def source(self, which: int) -> KernelSource:
        defines = {
            "DATA_T": CUDA_TYPES[self.dtype],
            "STATE_T": CUDA_TYPES[self.state],
            "D_T": CUDA_TYPES[self.D],
            "BIAS_T": CUDA_TYPES[self.bias],
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
            "SLICE": self.slice,
            "STAGES": self.stages,
            "ALIGNED": int(self.aligned),
            "PASS": which,
        }
        pairs = tuple((name, str(value)) for name, value in defines.items())
        return KernelSource(MMA_FILE, _MMA_ENTRY, pairs, hot=self.aligned)


@dataclass(frozen=True)
class _Scan:
    """One call with its sizes."""

    call: OpCall
    rows: int
    time: int
    heads: int
    head_dim: int
    groups: int
    state_size: int

    @classmethod
    def of(cls, call: OpCall) -> _Scan:
        x, B, state = call.input("x"), call.input("B"), call.input("state")
        for name, layout, axes in (
            *((name, call.input(name), 2) for name in ("x", "B", "C")),
            ("y", call.outputs[0], 2),
            ("dt", call.input("dt"), 1),
            ("state", state, 3),
            ("state_out", call.outputs[1], 3),
        ):
            layout.need_dense_tail(name, axes)
        heads, head_dim, state_size = state.shape[1:]
        call.spec.check_kernel_dims({"head_dim": head_dim, "state_size": state_size})
        dense_time = x.shape[1] if len(x.shape) == 4 else 1
        rows = call.packed.rows if call.packed is not None else x.shape[0]
        if rows > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"update_ssm_state: expected at most {_LARGEST_GRID_YZ} rows, found {rows}: split the call"
            )
        time = call.packed.max_row_tokens if call.packed is not None else dense_time
        return cls(call, rows, time, heads, head_dim, B.shape[-2], state_size)

    def strides(self, layout: TensorLayout) -> tuple[int, int]:
        """Of a row and a token of x, B, C or y, whose last two axes belong to a token."""
        return self._strides(layout, 2)

    def dt_strides(self) -> tuple[int, int]:
        return self._strides(self.call.input("dt"), 1)

    def _strides(self, layout: TensorLayout, tail: int) -> tuple[int, int]:
        outer = layout.strides[:-tail]
        if self.call.packed is not None:
            return 0, outer[0]
        return outer[0], outer[1] if len(outer) == 2 else 0

    def aligned(self) -> bool:
        """Whether every row of x, B, C and y starts at a multiple of 16 bytes."""
        layouts = (*(self.call.input(name) for name in ("x", "B", "C")), self.call.outputs[0])
        return all(
            layout.alignment >= 16
            and math.gcd(16, *(stride * layout.dtype.itemsize for stride in self.strides(layout))) == 16
            for layout in layouts
        )


def _mma_variant(scan: _Scan, device: DeviceTraits) -> _Variant:
    dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
    variant = _Variant(dtype, state, D, bias, scan.head_dim, scan.state_size, 0, 2, scan.aligned())
    widest = scan.head_dim
    wanted = device.multiprocessors * _BLOCKS_OF_MULTIPROCESSOR
    if scan.rows * scan.heads * 2 <= wanted and scan.time <= 2 * CHUNK * _LEAST_SEGMENT_CHUNKS:
        widest = max(16, scan.head_dim // 2)  # more blocks for a few short rows
    variant = _with_slice(variant, widest)
    while variant.shared_bytes > device.shared_bytes:
        if variant.stages == 2:
            variant = replace(variant, stages=1)
        elif variant.slice > 16:
            variant = replace(variant, slice=_round_up(variant.slice // 2, 16))
        else:
            raise UnsupportedError(
                f"update_ssm_state: expected a GPU with {variant.shared_bytes} bytes of shared memory a block for "
                f"{scan.call.input('x').dtype.value} at state size {scan.state_size}, found {device.shared_bytes}: "
                "use a 16-bit type or the onnxruntime engine"
            )
    return variant


def _with_slice(variant: _Variant, widest: int) -> _Variant:
    """``variant`` with even slices of head_dim, at most ``widest`` wide and narrow enough for the registers."""
    limit = _ACCUMULATORS[variant.dtype.itemsize]
    for slices in itertools.count(1):
        sliced = replace(variant, slice=_round_up(_blocks(variant.head_dim, slices), 16))
        narrow = sliced.slice <= _round_up(widest, 16) and sliced.state_registers + sliced.slice // 2 <= limit
        if narrow or sliced.slice == 16:
            return sliced
    raise AssertionError("unreachable")


def _segments(scan: _Scan, variant: _Variant, device: DeviceTraits) -> int:
    blocks = scan.rows * scan.heads * variant.slices
    free = device.multiprocessors * _BLOCKS_OF_MULTIPROCESSOR // blocks
    return max(1, min(_MOST_SEGMENTS, free, _blocks(scan.time, CHUNK) // _LEAST_SEGMENT_CHUNKS))


def _scratch_bytes(scan: _Scan, variant: _Variant, segments: int) -> int:
    """Of the states and decays that prefill_mma.cu keeps between its passes."""
    blocks = scan.rows * scan.heads * variant.slices
    return 0 if segments == 1 else 4 * blocks * segments * (variant.state_registers * _MMA_THREADS + 1)


def _mma_launch(scan: _Scan, variant: _Variant, which: int, segments: int, device: DeviceTraits) -> KernelLaunch:
    source = variant.source(which)
    pointers = _pointers(scan.call)
    if which != _WHOLE:
        pointers["scratch"] = PointerSource(Memory.WORKSPACE)
    return KernelLaunch(
        source,
        (scan.heads * variant.slices, scan.rows, segments - 1 if which == _STATES else segments),
        (_MMA_THREADS, 1, 1),
        _params(scan, source.file, segments),
        pointers,
        variant.shared_bytes,
        overlap=device.capability >= _OVERLAP_SINCE,
    )


def _params(scan: _Scan, file: str, segments: int) -> ctypes.Structure:
    call, params = scan.call, struct_type(file, "PrefillParams")()
    params.rows.rows, params.rows.time = scan.rows, scan.time
    params.x_row, params.x_token = scan.strides(call.input("x"))
    params.B_row, params.B_token = scan.strides(call.input("B"))
    params.C_row, params.C_token = scan.strides(call.input("C"))
    params.y_row, params.y_token = scan.strides(call.outputs[0])
    params.dt_row, params.dt_token = scan.dt_strides()
    params.state_slot, params.state_out_slot = call.input("state").strides[0], call.outputs[1].strides[0]
    params.heads, params.groups, params.segments = scan.heads, scan.groups, segments
    params.dt_softplus = call.attributes["dt_softplus"]
    params.dt_min, params.dt_max = call.attributes["time_step_min"], call.attributes["time_step_max"]
    return params


def _pointers(call: OpCall) -> dict[str, PointerSource]:
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias", "state")
    pointers = {name: PointerSource(Memory.INPUT, call.spec.input_index(name)) for name in names}
    pointers |= {"y": PointerSource(Memory.OUTPUT, 0), "state_out": PointerSource(Memory.OUTPUT, 1)}
    if call.packed is None:
        pointers["rows.context_lengths"] = PointerSource(Memory.INPUT, call.spec.input_index("context_lengths"))
    else:
        pointers["rows.query_start_loc"] = PointerSource(Memory.PACKED, 0)
        if call.packed.has_state_indices:
            pointers["rows.state_indices"] = PointerSource(Memory.PACKED, 1)
    return pointers


def _pitch(columns: int, dtype: DType) -> int:
    """Elements from row to row of a tile: TileLayout::PITCH in common/mma.cuh."""
    unit = 16 // dtype.itemsize
    units = columns // unit
    return (units if units % 8 == 0 or units % 2 else units + 1) * unit


def _blocks(size: int, of: int) -> int:
    return -(-size // of)


def _round_up(value: int, multiple: int) -> int:
    return _blocks(value, multiple) * multiple
