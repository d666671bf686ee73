"""The kernel of ``gated_delta_rule`` for one token per row and many states of 16 bits, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import DeviceTraits
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.source import KernelSource

FILE, ENTRY = "gated_delta_rule/decode_columns.cu", "gated_delta_rule_decode"
_ROWS_OF_WARP = 32
_ACCESS_COLUMNS, _WIDE = 64, 128  # of a warp's access, and of two
_WARPS_OF_MULTIPROCESSOR = 8  # more have a longer tail, where the last blocks leave some multiprocessors idle


@dataclass(frozen=True)
class Columns:
    """The macros of decode_columns.cu; dtype: of data and state."""

    dtype: DType
    key_size: int
    value_size: int
    channel_decay: bool
    normed: bool

    @property
    def accesses(self) -> int:
        """Of a lane to a row of the state."""
        return min(2, self.value_size // _ACCESS_COLUMNS)

    @property
    def slices(self) -> int:
        """Blocks that share a head."""
        return self.value_size // (self.accesses * _ACCESS_COLUMNS)

    @property
    def threads(self) -> int:
        return self.key_size

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor, which registers are to allow."""
        return max(1, _WARPS_OF_MULTIPROCESSOR * _ROWS_OF_WARP // self.key_size)

    def ahead(self, device: DeviceTraits) -> int:
        """Blocks from one to that whose state it prefetches: as many as run at once."""
        return self.blocks * device.multiprocessors if self.slices == 1 else 0

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "KEY_SIZE": self.key_size,
            "VALUE_SIZE": self.value_size,
            "CHANNEL_DECAY": self.channel_decay,
            "ACCESSES": self.accesses,
            "NORMED": self.normed,
            "BLOCKS": self.blocks,
        }
        return KernelSource.of(FILE, ENTRY, defines)


def takes_columns(call: DeltaCall) -> bool:
    """Whether this kernel can run a call with one token per row."""
    return (
        call.state.dtype.itemsize == call.dtype.itemsize == 2
        and (call.dtype is DType.BFLOAT16 or not call.channel_decay)
        and call.key_size % _ROWS_OF_WARP == 0
        and (call.value_size == _ACCESS_COLUMNS or call.value_size % _WIDE == 0)
        and call.token_access_bytes("q", "k") == ACCESS_BYTES
    )


def columns_sources() -> Iterator[KernelSource]:
    """Both types at the usual size, and other sizes in bfloat16."""
    for dtype, channel_decay in ((DType.BFLOAT16, False), (DType.FLOAT16, False), (DType.BFLOAT16, True)):
        yield Columns(dtype, 128, 128, channel_decay, True).source()
    for key_size, value_size in ((64, 64), (96, 128), (128, 256), (256, 256)):
        for channel_decay in (False, True):
            yield Columns(DType.BFLOAT16, key_size, value_size, channel_decay, False).source()
