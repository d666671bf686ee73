"""The chunked kernel on Hopper's warpgroup products: 16-bit data, state sizes up to 128, sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from artifact.dtypes import DType
from trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from trt_plugins.kernels.ops.update_ssm_state_prefill_call import (
    CHUNK,
    OUTPUTS,
    STATES,
    WHOLE,
    Scan,
    blocks_of,
    kernel_params,
    kernel_pointers,
    round_up,
)
from trt_plugins.kernels.source import CUDA_TYPES, KernelSource

WGMMA_FILE = "update_ssm_state/prefill_wgmma.cu"
_ENTRY = "update_ssm_state_prefill_wgmma"
_HOPPER = (9, 0)
_UNITS = 2  # slices of heads that share B and C in a block, one a warpgroup
_THREADS = 128 * (1 + _UNITS)
_STAGES = 3
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
    variant = _Variant.of(scan)
    blocks = scan.groups * blocks_of(scan.heads // scan.groups * variant.slices, _UNITS)
    free = device.multiprocessors // (scan.rows * blocks)
    segments = max(1, min(_MOST_SEGMENTS, free, blocks_of(scan.time, CHUNK) // _LEAST_SEGMENT_CHUNKS))
    launches = tuple(
        _launch(scan, variant, which, blocks, segments) for which in ((WHOLE,) if segments == 1 else (STATES, OUTPUTS))
    )
    floats = scan.rows * blocks * _UNITS * segments * (variant.state_registers * 128 + 1)
    return CallPlan(launches, 0 if segments == 1 else 4 * floats, launches[-1].source.label)


def wgmma_sources() -> Iterator[KernelSource]:
    """Both types at the usual sizes, every pass, the fast head dims."""
    common = _Variant(DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, 64, 128)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for which in (WHOLE, STATES, OUTPUTS):
            for state in (DType.FLOAT32, dtype):
                yield replace(common, dtype=dtype, state=state, D=dtype, bias=dtype).source(which)
    for head_dim, state_size in ((64, 64), (80, 128), (96, 128), (128, 128), (256, 128), (8, 8)):
        yield replace(common, head_dim=head_dim, state_size=state_size).source(WHOLE)


@dataclass(frozen=True)
class _Variant:
    """What the macros of prefill_wgmma.cu choose."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    head_dim: int
    state_size: int

    @classmethod
    def of(cls, scan: Scan) -> _Variant:
        dtype, state, D, bias = (scan.call.input(name).dtype for name in ("x", "state", "D", "dt_bias"))
        return cls(dtype, state, D, bias, scan.head_dim, scan.state_size)

    @property
    def slices(self) -> int:
        """Parts of head_dim, of at most 64 columns."""
        return blocks_of(self.head_dim, _WIDTH)

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
        stage = 2 * CHUNK * (2 * self.state_columns + _UNITS * _WIDTH)
        return _STAGES * stage + _UNITS * 2 * _WIDTH * self.state_columns + _STAGES * (_UNITS * _DECAY_BYTES + 16)

    def source(self, which: int) -> KernelSource:
        defines = {
            "DATA_T": CUDA_TYPES[self.dtype],
            "STATE_T": CUDA_TYPES[self.state],
            "D_T": CUDA_TYPES[self.D],
            "BIAS_T": CUDA_TYPES[self.bias],
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
            "SLICE": round_up(blocks_of(self.head_dim, self.slices), 8),
            "PASS": which,
        }
        return KernelSource(WGMMA_FILE, _ENTRY, tuple((name, str(value)) for name, value in defines.items()))


def _launch(scan: Scan, variant: _Variant, which: int, blocks: int, segments: int) -> KernelLaunch:
    pointers = kernel_pointers(scan.call)
    if which != WHOLE:
        pointers["scratch"] = PointerSource(Memory.WORKSPACE)
    return KernelLaunch(
        variant.source(which),
        (blocks, scan.rows, segments - 1 if which == STATES else segments),
        (_THREADS, 1, 1),
        kernel_params(scan, WGMMA_FILE, segments),
        pointers,
        variant.shared_bytes,
        overlap=True,
    )
