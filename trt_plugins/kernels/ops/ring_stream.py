"""The kernel of ``gated_delta_rule`` over many float32 states with rings: bulk copies and resident blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.specs.ring import RING

FILE, ENTRY = "gated_delta_rule/decode_ring_stream.cu", "gated_delta_rule_ring_stream"
_SHARED_BYTES = 227 << 10  # of a block, on Hopper and the Blackwell of data centers
_BARRIER_BYTES = 8
_CHUNKS = 4
_KEY_SIZES, _VALUE_SIZE = (64, 128), 128
_COMPUTING_WARPS, _COPYING_WARPS, _PRODUCERS = 8, 1, 3
_WARP = 32
LEAST_HEADS = 12
"""Heads of a multiprocessor from which on this kernel is used. Its blocks take all of the shared memory, so that the
kernel after it starts late, which costs more than it saves where there are few."""


@dataclass(frozen=True)
class RingStream:
    """The macros of decode_ring_stream.cu. dense: rows are dense."""

    dtype: DType
    key_size: int
    normed: bool
    dense: bool

    @classmethod
    def of(cls, call: DeltaCall, device: DeviceTraits) -> RingStream | None:
        """The variant for ``call`` over rings; None where another kernel runs it."""
        if not device.is_hopper_or_later or device.shared_bytes < _SHARED_BYTES or call.channel_decay:
            return None
        if call.state.dtype is not DType.FLOAT32 or call.key_size not in _KEY_SIZES or call.value_size != _VALUE_SIZE:
            return None
        if call.rows * call.value_heads < LEAST_HEADS * device.multiprocessors:
            return None
        return cls(call.dtype, call.key_size, call.normed, call.call.packed is None)

    @property
    def stages(self) -> int:
        """Chunks of states in shared memory, beside what the producers prepare: at least the struct Tokens, each."""
        tokens = RING * (4 * _VALUE_SIZE + self.dtype.itemsize * self.key_size) + 8 * self.key_size + 4 * _VALUE_SIZE
        of_producer = tokens + 256 + 2 * _BARRIER_BYTES
        chunk = 4 * self.key_size * _VALUE_SIZE // _CHUNKS + 2 * _BARRIER_BYTES
        return (_SHARED_BYTES - _PRODUCERS * of_producer - ACCESS_BYTES) // chunk

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "KEY_SIZE": self.key_size,
            "NORMED": self.normed,
            "DENSE": self.dense,
            "RING": RING,
            "STAGES": self.stages,
            "PRODUCERS": _PRODUCERS,
            "SHARED_BYTES": _SHARED_BYTES,
        }
        return KernelSource.of(FILE, ENTRY, defines)

    def launch(self, plain: KernelLaunch, call: DeltaCall, device: DeviceTraits) -> KernelLaunch:
        """``plain``, the launch of the other kernel over rings, by this one, which has the same parameters."""
        blocks = min(call.rows * call.value_heads, device.multiprocessors)
        threads = _WARP * (_COMPUTING_WARPS + _COPYING_WARPS + _PRODUCERS)
        return replace(
            plain, source=self.source(), grid=(blocks, 1, 1), block=(threads, 1, 1), shared_bytes=_SHARED_BYTES
        )


def stream_sources() -> Iterator[KernelSource]:
    """Every type at the usual sizes, and the other key size in bfloat16."""
    for dense in (False, True):
        for dtype in (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32):
            yield RingStream(dtype, 128, True, dense).source()
        yield RingStream(DType.BFLOAT16, 64, False, dense).source()
