"""The second kernel of chunked ``gated_delta_rule`` on Hopper's warpgroup products: 16-bit data, sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.architectures import HOPPER
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.source import KernelSource

FILE, ENTRY = "gated_delta_rule/prefill_groups.cu", "gated_delta_rule_prefill_groups"
_KEY_SIZES = (64, 128)
_GROUP_COLUMNS = 64
_CHUNK, _PANEL_BYTES, _ALIGNMENT = 64, 8192, 1024
_STAGES = 3
_WIDE_CHANNEL_STAGES = 2  # of two groups with one decay per key channel, whose chunks are larger
_LOADERS = {1: 2, 2: 4}  # warps that copy, by the warpgroups of a block
_WARP = 32


@dataclass(frozen=True)
class Groups:
    """The macros of prefill_groups.cu. groups: warpgroups of a block, with 64 columns each.

    chunk_bytes: size of PreparedChunk, or of PreparedChannels, in prefill_params.cuh.
    """

    dtype: DType
    state: DType
    key_size: int
    value_size: int
    groups: int
    chunk_bytes: int = 0
    channel_decay: bool = False

    @classmethod
    def of(cls, call: DeltaCall, device: DeviceTraits, chunk_bytes: int) -> Groups:
        """The variant for a call that ``takes`` accepts."""
        sizes = (call.dtype, call.state.dtype, call.key_size, call.value_size)
        groups = cls(*sizes, 1, chunk_bytes, call.channel_decay)
        many = groups.slices % 2 == 0 and call.rows * call.value_heads * groups.slices > device.multiprocessors
        return replace(groups, groups=2) if many else groups

    @property
    def slices(self) -> int:
        """Blocks that share a head."""
        return self.value_size // (self.groups * _GROUP_COLUMNS)

    @property
    def threads(self) -> int:
        return 4 * _WARP * self.groups + _WARP * _LOADERS[self.groups]

    @property
    def stages(self) -> int:
        return _WIDE_CHANNEL_STAGES if self.channel_decay and self.groups > 1 else _STAGES

    @property
    def shared_bytes(self) -> int:
        """Size of Shared in prefill_groups.cu; with one decay per key channel, k and q are in the chunk."""
        panels = self.groups + (0 if self.channel_decay else 2 * self.key_size // _GROUP_COLUMNS)
        stage = panels * _PANEL_BYTES + -(-self.chunk_bytes // _ALIGNMENT) * _ALIGNMENT
        return self.stages * stage + _ALIGNMENT

    def fits_together(self, call: DeltaCall, device: DeviceTraits) -> bool:
        """Whether all blocks run at once, each with one of the first kernel, which prepares chunks just ahead.

        Where there are more, several blocks of the first kernel on a multiprocessor are worth more than one.
        """
        return self.groups == 1 and call.rows * call.value_heads * self.slices <= device.multiprocessors

    def rows_at_once(self, call: DeltaCall, device: DeviceTraits) -> int:
        """Rows whose blocks run at the same time, each on a multiprocessor of its own."""
        return max(1, min(call.rows, device.multiprocessors // (call.value_heads * self.slices)))

    def launch(self, params: Any, call: DeltaCall, pointers: dict[str, PointerSource]) -> KernelLaunch:
        grid = (params.values_per_key * self.slices, call.key_heads, call.rows)
        return KernelLaunch(
            self.source(), grid, (self.threads, 1, 1), params, pointers, self.shared_bytes, overlap=True
        )

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "STATE_T": self.state,
            "KEY_SIZE": self.key_size,
            "VALUE_SIZE": self.value_size,
            "GROUPS": self.groups,
            "LOADERS": _LOADERS[self.groups],
            "STAGES": self.stages,
            "CHANNEL_DECAY": self.channel_decay,
        }
        return KernelSource.of(FILE, ENTRY, defines)


def takes(call: DeltaCall, device: DeviceTraits) -> bool:
    """Whether this kernel runs the call on the device."""
    return (
        device.capability == HOPPER
        and call.dtype.itemsize == 2
        and call.key_size in _KEY_SIZES
        and call.value_size % _GROUP_COLUMNS == 0
        and call.token_access_bytes("q", "k", "v", "o") == ACCESS_BYTES
    )


def groups_sources() -> Iterator[KernelSource]:
    """Both cuts at the usual size for every type, and other sizes in bfloat16."""
    base = Groups(DType.BFLOAT16, DType.FLOAT32, 128, 128, 1)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for state in (DType.FLOAT32, dtype):
            for channels in (False, True):
                several = (replace(base, dtype=dtype, state=state, groups=groups) for groups in _LOADERS)
                yield from (replace(each, channel_decay=channels).source() for each in several)
    for key_size, value_size, groups in ((64, 64, 1), (64, 128, 2), (128, 192, 1), (128, 256, 2)):
        yield replace(base, key_size=key_size, value_size=value_size, groups=groups).source()
        yield replace(base, key_size=key_size, value_size=value_size, groups=groups, channel_decay=True).source()
