"""The chunked kernel on Hopper's warpgroup products: 16-bit data, state sizes up to 128, sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.ops.state_space import state_space_pointers
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_call import (
    CHUNK,
    OUTPUTS,
    STATES,
    WHOLE,
    Scan,
    blocks_of,
    kernel_params,
    round_up,
)
from hybridge.trt_plugins.kernels.source import KernelSource

WGMMA_FILE = "update_ssm_state/prefill_wgmma.cu"
_ENTRY = "update_ssm_state_prefill_wgmma"
_HOPPER = (9, 0)
_UNITS = 2  # most slices of heads that share B and C in a block, one a warpgroup
_STAGES = {1: 4, 2: 3}  # tiles in flight, by units of a block
_WIDTH = 64  # most columns of a slice
_LARGEST_STATE = 128
_DECAY_BYTES = 4 * (4 * CHUNK + 4) + 4 * 4 * CHUNK  # ChunkDecay and BlockDecay
# Segments of a row are computed at the same time where blocks would leave multiprocessors idle.
_LEAST_SEGMENT_CHUNKS = 3
_MOST_SEGMENTS = 16


def takes(scan: Scan, device: DeviceTraits) -> bool:
    """Whether this kernel runs the call on the device."""
    data = scan.call.input("x").dtype
    return device.capability == _HOPPER and data.itemsize == 2 and scan.state_size <= _LARGEST_STATE and scan.aligned


def plan_wgmma(scan: Scan, device: DeviceTraits) -> CallPlan:
    """The launches of a call that ``takes`` accepts."""
    variant, segments = _choice(scan, device)
    launches = tuple(
        _launch(scan, variant, which, segments) for which in ((WHOLE,) if segments == 1 else (STATES, OUTPUTS))
    )
    floats = scan.rows * variant.blocks(scan) * variant.units * segments * (variant.state_registers * 128 + 1)
    return CallPlan(launches, 0 if segments == 1 else 4 * floats, launches[-1].source.label)


def _choice(scan: Scan, device: DeviceTraits) -> tuple[_Variant, int]:
    """The variant, and into how many segments rows are cut."""
    dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
    whole = blocks_of(scan.head_dim, _WIDTH)
    variant = _Variant(dtype, state, D, bias, scan.head_dim, scan.state_size, whole, _UNITS)
    chunks, processors = blocks_of(scan.time, CHUNK), device.multiprocessors
    single = replace(variant, units=1)
    if 0.75 * processors <= scan.rows * single.blocks(scan) <= processors:
        return single, 1
    segments = min(_MOST_SEGMENTS, processors // (scan.rows * variant.blocks(scan)), chunks // _LEAST_SEGMENT_CHUNKS)
    if segments > 1:
        return variant, segments
    if scan.rows * single.blocks(scan) > processors:
        return variant, 1
    for slices in (4 * whole, 2 * whole):
        narrow = replace(single, slices=slices)
        if scan.rows * narrow.blocks(scan) <= processors and scan.head_dim % (8 * slices) == 0:
            return narrow, 1
    return single, 1


def wgmma_sources() -> Iterator[KernelSource]:
    """Both types at the usual sizes, every pass, the fast head dims."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128, 1, _UNITS)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for which in (WHOLE, STATES, OUTPUTS):
            for state in (DType.FLOAT32, dtype):
                yield replace(common, dtype=dtype, state=state, D=dtype, bias=dtype).source(which)
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (256, 128), (8, 8)):
        sized = replace(common, head_dim=head_dim, state_size=state_size, slices=blocks_of(head_dim, _WIDTH))
        yield sized.source(WHOLE)
        yield replace(sized, units=1).source(WHOLE)
    for slices in (2, 4):
        yield replace(common, slices=slices, units=1).source(WHOLE)


@dataclass(frozen=True)
class _Variant:
    """The choices behind the macros of prefill_wgmma.cu."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    head_dim: int
    state_size: int
    slices: int
    units: int

    def blocks(self, scan: Scan) -> int:
        """Thread blocks of one row and segment."""
        return scan.groups * blocks_of(scan.heads // scan.groups * self.slices, self.units)

    @property
    def state_columns(self) -> int:
        return 64 if self.state_size <= 64 else 128

    @property
    def state_registers(self) -> int:
        """Accumulators of the state of one thread."""
        return self.state_columns // 2

    @property
    def shared_bytes(self) -> int:
        """Size of Shared in prefill_wgmma.cu."""
        stage = 2 * CHUNK * (2 * self.state_columns + self.units * _WIDTH)
        state = 2 * _WIDTH * self.state_columns
        return _STAGES[self.units] * (stage + self.units * _DECAY_BYTES + 16) + self.units * state

    def source(self, which: int) -> KernelSource:
        defines = {
            "CHUNK_TOKENS": CHUNK,
            "DATA_T": self.dtype,
            "STATE_T": self.state,
            "D_T": self.D,
            "BIAS_T": self.bias,
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
            "SLICE": round_up(blocks_of(self.head_dim, self.slices), 8),
            "UNITS_OF_BLOCK": self.units,
            "PASS": which,
        }
        return KernelSource.of(WGMMA_FILE, _ENTRY, defines)


def _launch(scan: Scan, variant: _Variant, which: int, segments: int) -> KernelLaunch:
    pointers = state_space_pointers(scan.call)
    if which != WHOLE:
        pointers["scratch"] = PointerSource(Memory.WORKSPACE)
    return KernelLaunch(
        variant.source(which),
        (variant.blocks(scan), scan.rows, segments - 1 if which == STATES else segments),
        (128 * (1 + variant.units), 1, 1),
        kernel_params(scan, WGMMA_FILE, segments),
        pointers,
        variant.shared_bytes,
        overlap=True,
    )
