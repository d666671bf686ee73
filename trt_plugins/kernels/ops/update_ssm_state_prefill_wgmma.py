"""The chunked kernel on Hopper's warpgroup products: 16-bit data, state sizes up to 128, sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.architectures import HOPPER
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
)
from hybridge.trt_plugins.kernels.source import KernelSource

WGMMA_FILE, _ENTRY = "update_ssm_state/prefill_wgmma.cu", "update_ssm_state_prefill_wgmma"
_SEGMENTS_FILE, _SEGMENTS_ENTRY = "update_ssm_state/prefill_wgmma_segments.cu", "update_ssm_state_prefill_segments"
_THREADS, _SEGMENTS_THREADS = 512, 384
_STAGES, _STATES = 4, 3  # tiles in flight of a whole row, and rounded states
_UNITS, _SEGMENTS_STAGES = 2, 3  # of a segment: slices of heads that share B and C in a block, and tiles in flight
_WIDTH = 64  # most columns of a slice
_LARGEST_STATE = 128
_UNIT = 8  # elements of an access to y
_DECAY_BYTES = 4 * (4 * CHUNK + 4) + 4 * 4 * CHUNK  # ChunkDecay and BlockDecay
_BARRIERS_BYTES = 16  # the two of a stage or state
# Segments of a row are computed at the same time where blocks would leave multiprocessors idle.
_BUSY_SHARE = 0.75
_LEAST_SEGMENT_CHUNKS = 3
_MOST_SEGMENTS = 16


def takes(scan: Scan, device: DeviceTraits) -> bool:
    """Whether this kernel runs the call on the device."""
    data = scan.call.input("x").dtype
    fits = data.itemsize == 2 and scan.state_size <= _LARGEST_STATE and scan.aligned and scan.pairs_states
    # Gates that are loaded one by one would take more registers than there are.
    return device.capability == HOPPER and fits and scan.gate_access(_UNIT) != 1


def plan_wgmma(scan: Scan, device: DeviceTraits) -> CallPlan:
    """The launches of a call that ``takes`` accepts."""
    variant, segments = _choice(scan, device)
    launches = tuple(_launch(scan, variant, which, segments) for which in passes_of(segments))
    floats = scan.rows * variant.pairs(scan) * _UNITS * segments * (variant.state_registers * 128 + 1)
    return CallPlan(launches, 0 if segments == 1 else 4 * floats, launches[-1].source.label)


def _choice(scan: Scan, device: DeviceTraits) -> tuple[_Variant, int]:
    """The variant, and into how many segments rows are cut."""
    dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
    whole = blocks_of(scan.head_dim, _WIDTH)
    variant = _Variant(dtype, state, D, bias, scan.head_dim, scan.state_size, whole, scan.gate_access(_UNIT))
    chunks, processors = blocks_of(scan.time, CHUNK), device.multiprocessors
    if scan.rows * scan.heads * whole >= _BUSY_SHARE * processors:
        return variant, 1
    segments = min(_MOST_SEGMENTS, processors // (scan.rows * variant.pairs(scan)), chunks // _LEAST_SEGMENT_CHUNKS)
    if segments > 1:
        return variant, segments
    for slices in (4 * whole, 2 * whole):
        if scan.rows * scan.heads * slices <= processors and scan.head_dim % (8 * slices) == 0:
            return replace(variant, slices=slices), 1
    return variant, 1


def wgmma_sources() -> Iterator[KernelSource]:
    """Both types at the usual sizes, every pass, the fast head dims."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128, 1)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for which in (WHOLE, STATES, OUTPUTS):
            for state in (DType.FLOAT32, dtype):
                yield replace(common, dtype=dtype, state=state, D=dtype, bias=dtype).source(which)
        for access in (2, _UNIT):
            yield from (replace(common, dtype=dtype, gate_access=access).source(which) for which in (WHOLE, OUTPUTS))
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (256, 128), (8, 8)):
        sized = replace(common, head_dim=head_dim, state_size=state_size, slices=blocks_of(head_dim, _WIDTH))
        gated = replace(sized, gate_access=_UNIT)
        yield from (variant.source(which) for variant in (sized, gated) for which in (WHOLE, OUTPUTS))
    for slices in (2, 4):
        yield from (replace(common, slices=slices, gate_access=access).source(WHOLE) for access in (0, _UNIT))


@dataclass(frozen=True)
class _Variant(ScanVariant):
    """The choices behind the macros of prefill_wgmma.cu."""

    slices: int
    gate_access: int = 0

    def pairs(self, scan: Scan) -> int:
        """Thread blocks of one row and segment, of _UNITS slices."""
        return scan.groups * blocks_of(scan.heads // scan.groups * self.slices, _UNITS)

    @property
    def state_columns(self) -> int:
        return 64 if self.state_size <= 64 else 128

    @property
    def state_registers(self) -> int:
        """Accumulators of the state of one thread."""
        return self.state_columns // 2

    def shared_bytes(self, which: int) -> int:
        """Size of Shared in the file of this pass."""
        units, stages, states = (1, _STAGES, _STATES) if which == WHOLE else (_UNITS, _SEGMENTS_STAGES, _UNITS)
        stage = 2 * CHUNK * (2 * self.state_columns + units * _WIDTH) + units * _DECAY_BYTES + _BARRIERS_BYTES
        return stages * stage + states * (2 * _WIDTH * self.state_columns + _BARRIERS_BYTES)

    def source(self, which: int) -> KernelSource:
        defines: dict[str, object] = {
            "CHUNK_TOKENS": CHUNK,
            **self.defines(),
            "SLICE": round_up(blocks_of(self.head_dim, self.slices), 8),
            "GATE_ACCESS": 0 if which == STATES else self.gate_access,
        }
        if which == WHOLE:
            return KernelSource.of(WGMMA_FILE, _ENTRY, defines)
        return KernelSource.of(_SEGMENTS_FILE, _SEGMENTS_ENTRY, defines | {"PASS": which})


def _launch(scan: Scan, variant: _Variant, which: int, segments: int) -> KernelLaunch:
    source = variant.source(which)
    return KernelLaunch(
        source,
        (
            scan.heads * variant.slices if which == WHOLE else variant.pairs(scan),
            scan.rows,
            segments - 1 if which == STATES else segments,
        ),
        (_THREADS if which == WHOLE else _SEGMENTS_THREADS, 1, 1),
        kernel_params(scan, source.file, segments),
        scan_pointers(scan, which),
        variant.shared_bytes(which),
        overlap=True,
    )
