"""The chunked kernel whose states stay in registers: 16-bit data, state sizes up to 128, sm_80 and up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_call import (
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
from hybridge.trt_plugins.kernels.source import KernelSource

REGISTERS_FILE, _ENTRY = "update_ssm_state/prefill_registers.cu", "update_ssm_state_prefill_registers"
_CHUNK = 32
_HELPERS, _WIDTH = 128, 16  # threads that load tiles and weigh scores; columns of a slice whose state a warp holds
_WIDEST_SLICE, _LARGEST_STATE = 64, 128
_LEAST_TIME = 384  # of a row; shorter ones take longer to begin than they gain
_BLOCKS_OF_MULTIPROCESSOR, _BLOCK_BYTES = 2, 1 << 10  # shared memory that a block takes beside its own
# Segments of a row are computed at the same time where blocks would leave multiprocessors idle. Fewer than three do not
# pay for the pass over their states.
_LEAST_SEGMENT_CHUNKS = 4
_LEAST_SEGMENTS, _MOST_SEGMENTS = 3, 8


def takes_registers(scan: Scan, device: DeviceTraits) -> bool:
    """Whether this kernel runs the call on the device."""
    data = scan.call.input("x").dtype
    if data.itemsize != 2 or scan.state_size > _LARGEST_STATE or scan.time < _LEAST_TIME:
        return False
    if not (scan.aligned and scan.pairs_states):
        return False
    # Gates that are loaded one by one would take more registers than there are.
    return scan.gate_access(2) != 1 and _variant(scan).shared_bytes <= device.shared_bytes


def plan_registers(scan: Scan, device: DeviceTraits) -> CallPlan:
    """The launches of a call that ``takes_registers`` accepts."""
    variant = _variant(scan)
    resident = _resident_blocks(variant, device)
    segments = _segments(scan, variant, resident)
    launches = tuple(_launch(scan, variant, which, segments, device) for which in passes_of(segments))
    # Of as many states as any call can have, as builders ask for the workspace of some calls of a range.
    floats = resident * (variant.slice * round_up(scan.state_size, 16) + 1)
    return CallPlan(launches, 0 if segments == 1 else 4 * floats, launches[-1].source.label)


def registers_sources() -> Iterator[KernelSource]:
    """Both types at the usual sizes, every pass, the fast head dims."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for which in (WHOLE, STATES, OUTPUTS):
            for state in (DType.FLOAT32, dtype):
                yield replace(common, dtype=dtype, state=state, D=dtype, bias=dtype).source(which)
        yield from (replace(common, dtype=dtype, gate_access=2).source(which) for which in (WHOLE, OUTPUTS))
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (256, 128), (72, 40), (8, 8)):
        sized = replace(common, head_dim=head_dim, state_size=state_size)
        yield from (replace(sized, gate_access=access).source(WHOLE) for access in (0, 2))


@dataclass(frozen=True)
class _Variant(ScanVariant):
    """The choices behind the macros of prefill_registers.cu."""

    gate_access: int = 0

    @property
    def slices(self) -> int:
        return blocks_of(self.head_dim, _WIDEST_SLICE)

    @property
    def slice(self) -> int:
        """Columns of a slice of head_dim."""
        return round_up(blocks_of(self.head_dim, self.slices), _WIDTH)

    @property
    def shared_bytes(self) -> int:
        """Size of Shared in prefill_registers_tiles.cuh."""
        wide, narrow, square = (
            round_up(_CHUNK * tile_pitch(columns, self.dtype) * self.dtype.itemsize, 128)
            for columns in (round_up(self.state_size, 16), self.slice, _CHUNK)
        )
        decays = 3 * 4 * (4 * _CHUNK + 4)
        return round_up(6 * wide + 2 * narrow + 2 * square + decays, 128)

    def source(self, which: int) -> KernelSource:
        defines = {
            "CHUNK_TOKENS": _CHUNK,
            **self.defines(),
            "SLICE": self.slice,
            "GATE_ACCESS": 0 if which == STATES else self.gate_access,
            "PASS": which,
        }
        # Two blocks of a multiprocessor leave 128 registers, and of a few addresses some spill.
        return KernelSource.of(REGISTERS_FILE, _ENTRY, defines, hot=False)


def _variant(scan: Scan) -> _Variant:
    dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
    return _Variant(dtype, state, D, bias, scan.head_dim, scan.state_size, scan.gate_access(2))


def _resident_blocks(variant: _Variant, device: DeviceTraits) -> int:
    """Blocks that run at the same time."""
    fitting = (device.shared_bytes + _BLOCK_BYTES) // (variant.shared_bytes + _BLOCK_BYTES)
    return device.multiprocessors * min(_BLOCKS_OF_MULTIPROCESSOR, fitting)


def _segments(scan: Scan, variant: _Variant, resident: int) -> int:
    free = resident // (scan.rows * scan.heads * variant.slices)
    segments = min(_MOST_SEGMENTS, free, blocks_of(scan.time, _CHUNK) // _LEAST_SEGMENT_CHUNKS)
    return segments if segments >= _LEAST_SEGMENTS else 1


def _launch(scan: Scan, variant: _Variant, which: int, segments: int, device: DeviceTraits) -> KernelLaunch:
    source = variant.source(which)
    return KernelLaunch(
        source,
        (scan.heads * variant.slices, scan.rows, segments - 1 if which == STATES else segments),
        (_HELPERS + 32 * (variant.slice // _WIDTH), 1, 1),
        kernel_params(scan, source.file, segments),
        scan_pointers(scan, which),
        variant.shared_bytes,
        overlap=device.is_hopper_or_later,
    )
