"""The chunked kernel on warp-level tensor core instructions: every type and size, sm_80 and up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_call import (
    CHUNK,
    OUTPUTS,
    STATES,
    WHOLE,
    Scan,
    ScanVariant,
    blocks_of,
    kernel_params,
    passes_of,
    round_up,
    scan_pointers,
    tile_pitch,
)
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource

MMA_FILE = "update_ssm_state/prefill_mma.cu"
_MMA_ENTRY = "update_ssm_state_prefill_mma"
_PART_WARPS = 4  # warps of a block, for each part of a slice's columns
# Most fp32 registers of a thread for the state and y accumulators, besides those for scores, fragments and addresses;
# by the bytes of an element.
_ACCUMULATORS = {2: 80, 4: 64}
# A row's chunks are computed in segments at the same time where blocks would leave multiprocessors idle. Each segment
# but the first costs a pass over its tokens for the states, which is worth it from this many chunks a segment on.
_LEAST_SEGMENT_CHUNKS = 4
_MOST_SEGMENTS = 8
_BLOCKS_OF_MULTIPROCESSOR = 2
_SHORT_CHUNK = 32  # where tiles of CHUNK tokens do not fit in shared memory


def plan_mma(scan: Scan, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call`` with any number of tokens per row.

    UnsupportedError for sizes outside of the operator's limits, tensors whose last axes are not contiguous, or more
    than 65,535 rows.
    """
    variant = _mma_variant(scan, device)
    segments = _segments(scan, variant, device)
    launches = tuple(_mma_launch(scan, variant, which, segments, device) for which in passes_of(segments))
    return CallPlan(launches, _scratch_bytes(scan, variant, segments), launches[-1].source.label)


def mma_sources() -> Iterator[KernelSource]:
    """Every type at the usual sizes, every pass, the fast head dims and both loads."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128, 64, 1, 2, True)
    for dtype, which in itertools.product(CUDA_TYPES, (WHOLE, STATES, OUTPUTS)):
        for state in {DType.FLOAT32, dtype}:
            yield _with_slice(replace(common, dtype=dtype, state=state, D=dtype, bias=dtype), 64).source(which)
    for dtype, access, which in itertools.product(CUDA_TYPES, (1, 2), (WHOLE, OUTPUTS)):
        yield _with_slice(replace(common, dtype=dtype, gate_access=access), 64).source(which)
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (64, 256), (256, 256), (8, 8), (72, 40)):
        for aligned in (True, False):
            sized = replace(common, head_dim=head_dim, state_size=state_size, aligned=aligned)
            yield from (_with_slice(replace(sized, gate_access=access), head_dim).source(WHOLE) for access in (0, 2))
    large = replace(common, dtype=DType.FLOAT32, state_size=256, slice=16, parts=1, stages=1, chunk=_SHORT_CHUNK)
    yield from (large.source(which) for which in (WHOLE, STATES, OUTPUTS))
    yield from (replace(large, gate_access=2).source(which) for which in (WHOLE, OUTPUTS))


@dataclass(frozen=True)
class _Variant(ScanVariant):
    """The choices behind the macros of prefill_mma.cu."""

    slice: int
    parts: int
    stages: int
    aligned: bool
    chunk: int = CHUNK
    gate_access: int = 0

    @property
    def slices(self) -> int:
        return blocks_of(self.head_dim, self.slice)

    @property
    def warps(self) -> int:
        return _PART_WARPS * self.parts

    @property
    def state_registers(self) -> int:
        """Accumulators of the state of one thread."""
        return blocks_of(round_up(self.state_size, 16) // 16, self.warps) * self.slice // 2

    @property
    def accumulators(self) -> int:
        """Of the state and y, of one thread."""
        return self.state_registers + self.slice // self.parts // 2

    @property
    def shared_bytes(self) -> int:
        """Size of PrefillShared in prefill_tiles.cuh."""
        wide = tile_pitch(round_up(self.state_size, 16), self.dtype) * self.dtype.itemsize
        narrow = tile_pitch(self.slice, self.dtype) * self.dtype.itemsize
        stage = self.chunk * (wide + narrow)
        state = round_up(self.state_size, 16) * narrow
        weights = 128 if self.parts == 1 else self.chunk * tile_pitch(self.chunk, self.dtype) * self.dtype.itemsize
        decay = 4 * (4 * self.chunk + 4)
        scalars = 80 if self.gate_access else 72
        stages = self.stages * round_up(stage, 128)
        return round_up(stages + self.chunk * wide + state + weights + 2 * decay + scalars, 128)

    def source(self, which: int) -> KernelSource:
        defines = {
            "CHUNK_TOKENS": self.chunk,
            **self.defines(),
            "SLICE": self.slice,
            "PARTS": self.parts,
            "STAGES": self.stages,
            "ALIGNED": self.aligned,
            "GATE_ACCESS": 0 if which == STATES else self.gate_access,
            "PASS": which,
        }
        return KernelSource.of(MMA_FILE, _MMA_ENTRY, defines, hot=self.aligned)


def _mma_variant(scan: Scan, device: DeviceTraits) -> _Variant:
    dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
    variant = _Variant(
        dtype, state, D, bias, scan.head_dim, scan.state_size, 0, 1, 2, scan.aligned, gate_access=scan.gate_access(2)
    )
    widest = scan.head_dim
    requested = device.multiprocessors * _BLOCKS_OF_MULTIPROCESSOR
    if scan.rows * scan.heads * 2 <= requested and scan.time <= 2 * CHUNK * _LEAST_SEGMENT_CHUNKS:
        widest = max(16, scan.head_dim // 2)  # more blocks for a few short rows
    variant = _with_slice(variant, widest)
    while variant.shared_bytes > device.shared_bytes:
        if variant.stages == 2:
            variant = replace(variant, stages=1)
        elif variant.slice > 16:
            variant = _with_slice(variant, round_up(variant.slice // 2, 16))
        elif variant.chunk > _SHORT_CHUNK:
            variant = replace(variant, chunk=_SHORT_CHUNK)
        else:
            raise UnsupportedError(
                f"update_ssm_state: expected a GPU with {variant.shared_bytes} bytes of shared memory a block for "
                f"{scan.call.input('x').dtype.value} at state size {scan.state_size}, found {device.shared_bytes}: "
                "use a 16-bit type or the onnxruntime engine"
            )
    return variant


def _with_slice(variant: _Variant, widest: int) -> _Variant:
    """``variant`` with even slices of head_dim, at most ``widest`` wide and narrow enough for the registers.

    Slices of 16-bit data wider than 16 columns have two parts, each of four warps.
    """
    parts = 2 if variant.dtype.itemsize == 2 and min(variant.head_dim, widest) > 16 else 1
    for slices in itertools.count(1):
        width = round_up(blocks_of(variant.head_dim, slices), 16 * parts)
        sliced = replace(variant, slice=width, parts=parts)
        narrow = width <= round_up(widest, 16 * parts) and sliced.accumulators <= _ACCUMULATORS[variant.dtype.itemsize]
        if narrow or width == 16 * parts:
            return sliced
    raise AssertionError("unreachable")


def _segments(scan: Scan, variant: _Variant, device: DeviceTraits) -> int:
    blocks = scan.rows * scan.heads * variant.slices
    # Eight warps keep a multiprocessor busy: a second pass pays off only if half of them would have no block.
    if variant.parts == 2 and 2 * blocks > device.multiprocessors:
        return 1
    free = device.multiprocessors * _BLOCKS_OF_MULTIPROCESSOR // blocks
    return max(1, min(_MOST_SEGMENTS, free, blocks_of(scan.time, CHUNK) // _LEAST_SEGMENT_CHUNKS))


def _scratch_bytes(scan: Scan, variant: _Variant, segments: int) -> int:
    """Bytes of the states and decays that prefill_mma.cu stores between its passes."""
    blocks = scan.rows * scan.heads * variant.slices
    return 0 if segments == 1 else 4 * blocks * segments * (variant.state_registers * 32 * variant.warps + 1)


def _mma_launch(scan: Scan, variant: _Variant, which: int, segments: int, device: DeviceTraits) -> KernelLaunch:
    source = variant.source(which)
    return KernelLaunch(
        source,
        (scan.heads * variant.slices, scan.rows, segments - 1 if which == STATES else segments),
        (32 * variant.warps, 1, 1),
        kernel_params(scan, source.file, segments),
        scan_pointers(scan, which),
        variant.shared_bytes,
        overlap=device.is_hopper_or_later,
    )
