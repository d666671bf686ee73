"""The kernel of ``gated_delta_rule`` for one token a row, or few: a block owns a slice of columns of a head's state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from artifact.dtypes import DType
from trt_plugins.kernels.call import DeviceTraits, KernelLaunch
from trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from trt_plugins.kernels.ops.gated_delta_rule_call import OVERLAP_SINCE, DeltaCall
from trt_plugins.kernels.ops.update_ssm_state import row_pointers
from trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from trt_plugins.kernels.structs import struct_type

FILE = "gated_delta_rule/decode_slices.cu"
ENTRY = "gated_delta_rule_decode"
_WARP = 32
_LINE_BYTES = 128
# Bytes of the state for each multiprocessor: up to the first number latency is the cost, and the state is fetched
# ahead; up to the second, blocks are so small that all of them run at once.
_FEW_BYTES = 48 << 10
_ONE_WAVE_BYTES = 128 << 10
_MOST_ROWS_OF_THREAD = 8
_LARGEST_SMALL_KEY = 128


@dataclass(frozen=True)
class Slice:
    """The macros of decode_slice.cuh. column_lanes: threads side by side in a row; rows: of the state, of a thread."""

    dtype: DType
    state: DType
    key_size: int
    value_size: int
    column_lanes: int
    rows: int

    @property
    def threads(self) -> int:
        return -(-self.key_size // self.rows * self.column_lanes // _WARP) * _WARP

    @property
    def slices(self) -> int:
        """Blocks that share a head."""
        return -(-self.value_size // (self.column_lanes * ACCESS_BYTES // self.state.itemsize))


@dataclass(frozen=True)
class _Variant:
    """All macros; key_bytes: the widest access to q and k."""

    slice: Slice
    channel_decay: bool
    normed: bool
    key_bytes: int
    many: bool
    prefetch: bool
    speculative: bool = False

    def source(self) -> KernelSource:
        cut = self.slice
        defines = {
            "DATA_T": CUDA_TYPES[cut.dtype],
            "STATE_T": CUDA_TYPES[cut.state],
            "KEY_SIZE": cut.key_size,
            "VALUE_SIZE": cut.value_size,
            "COLUMN_LANES": cut.column_lanes,
            "ROWS": cut.rows,
            "THREADS": cut.threads,
            "CHANNEL_DECAY": int(self.channel_decay),
            "NORMED": int(self.normed),
            "KEY_ACCESS": math.gcd(self.key_bytes // cut.dtype.itemsize, cut.rows),
            "MANY": int(self.many),
            "PREFETCH": int(self.prefetch),
            "SPECULATIVE": int(self.speculative),
        }
        return KernelSource(FILE, ENTRY, tuple((name, str(text)) for name, text in defines.items()))


def decode_launch(call: DeltaCall, device: DeviceTraits, candidates: bool = False) -> KernelLaunch:
    """One launch, which walks the tokens of a row where it has several. candidates: it keeps the state after each."""
    cut, few = _cut(call, device.multiprocessors)
    overlap = device.capability >= OVERLAP_SINCE
    variant = _Variant(
        cut,
        call.channel_decay,
        call.normed,
        call.token_access_bytes("q", "k"),
        candidates or call.time > 1,
        prefetch=few and overlap and not candidates,
        speculative=candidates,
    )
    params = struct_type(FILE, "GatedDeltaDecode")()
    call.fill(params)
    params.rows.rows, params.rows.time = call.rows, call.time
    grid = (params.values_per_key * cut.slices, call.key_heads, call.rows)
    pointers = call.inputs("q", "k", "v", "g", "beta", "state") | call.outputs() | row_pointers(call.call, "rows.")
    return KernelLaunch(variant.source(), grid, (cut.threads, 1, 1), params, pointers, overlap=overlap)


def decode_sources() -> Iterator[KernelSource]:
    """Every type, cut and form of decay at the usual sizes, and other sizes in bfloat16."""
    few = Slice(DType.BFLOAT16, DType.FLOAT32, 128, 128, 4, 4)
    base = _Variant(few, False, True, ACCESS_BYTES, False, True)
    for dtype in CUDA_TYPES:
        for state in {DType.FLOAT32, dtype}:
            for rows in (4, 8):
                cut = replace(few, dtype=dtype, state=state, rows=rows, column_lanes=_column_lanes(state, rows))
                yield from (
                    replace(base, slice=cut, channel_decay=channel, prefetch=rows == 4).source()
                    for channel in (False, True)
                )
                walking = replace(base, slice=cut, many=True, prefetch=False)
                yield walking.source()
                yield from (
                    replace(walking, speculative=True, channel_decay=channel).source() for channel in (False, True)
                )
    for key_size, value_size in ((64, 64), (64, 128), (96, 192), (128, 256), (192, 192), (256, 256), (16, 16)):
        for state in (DType.FLOAT32, DType.BFLOAT16):
            cut = Slice(few.dtype, state, key_size, value_size, _column_lanes(state, 8), 8)
            yield replace(base, slice=cut, prefetch=False).source()
            yield replace(base, slice=cut, normed=False, key_bytes=2, prefetch=False).source()


def _column_lanes(state: DType, rows: int) -> int:
    """Lanes whose accesses fill a line of memory; half of one where that makes smaller blocks or frees registers."""
    lanes = _LINE_BYTES // ACCESS_BYTES
    return lanes if state is DType.FLOAT32 and rows == _MOST_ROWS_OF_THREAD else lanes // 2


def _cut(call: DeltaCall, multiprocessors: int) -> tuple[Slice, bool]:
    """How the states are cut, and whether they are so few bytes that latency is the cost."""
    item = call.state.dtype.itemsize
    share = call.rows * call.value_heads * call.key_size * call.value_size * item / multiprocessors
    few = share <= _FEW_BYTES
    small = few or (item == 2 and share <= _ONE_WAVE_BYTES)
    rows = _MOST_ROWS_OF_THREAD // 2 if small and call.key_size <= _LARGEST_SMALL_KEY else _MOST_ROWS_OF_THREAD
    lanes = _column_lanes(call.state.dtype, rows)
    return Slice(call.dtype, call.state.dtype, call.key_size, call.value_size, lanes, rows), few
