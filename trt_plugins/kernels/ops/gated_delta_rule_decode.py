"""The kernel of ``gated_delta_rule`` for one token a row, or few: a block owns a slice of columns of a head's state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_columns import Columns, columns_sources, takes_columns
from hybridge.trt_plugins.kernels.ops.ring_stream import RingStream, stream_sources
from hybridge.trt_plugins.kernels.ops.rows import ring_pointers, row_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.ring import RING

FILE = "gated_delta_rule/decode_slices.cu"
ENTRY = "gated_delta_rule_decode"
RING_FILE = "gated_delta_rule/decode_ring.cu"
_WARP = 32
# Bytes of the state for each multiprocessor: up to the first number latency is the cost; up to the second all blocks
# run at once; where there are more, memory wants long runs of a row.
_FEW_BYTES = 48 << 10
_ONE_WAVE_BYTES = 128 << 10
_LARGEST_SMALL_KEY = 128
# Wider keys than these: threads of a 16-bit state spill on Blackwell where 512 of them are to fit.
_LARGEST_LEAN_KEY = 192
# And those of float16, whose conversions take a register more, where 1024 are to fit.
_MOST_HALF_THREADS = 896
_ROWS = 8
# Lanes, rows of a lane and threads at once, by the bytes of an element of the state.
_FEW = {4: (4, 8, 640), 2: (4, 4, 1024)}
_ONE_WAVE = {4: (8, 16, 512), 2: (4, 4, 1024)}
_MANY_BYTES = {4: (16, 8, 640), 2: (8, 8, 512)}
# Several tokens a row and decays of key channels keep more floats besides the state, and take at most this many rows.
_LARGER_TOKENS = {4: (16, 8, 640), 2: (4, 4, 640)}
# States with rings, where there are many bytes of them. Data of 32 bits, dense rows and slices that are not full take
# more registers.
_RING = {4: (8, 8, 640), 2: (8, 8, 512)}
_WIDE_RING_AT_ONCE = 512
_RING_CHANNELS_AT_ONCE = 384
# Where several tokens are walked, a 16-bit state is kept as floats between them.
_WALKED = {4: _MANY_BYTES[4], 2: (8, 4, 448)}


@dataclass(frozen=True)
class Slice:
    """The macros of decode_slice.cuh. column_lanes: threads side by side in a row; rows: of the state, of a thread.

    at_once: threads of a multiprocessor that registers are to allow.
    """

    dtype: DType
    state: DType
    key_size: int
    value_size: int
    column_lanes: int
    rows: int
    at_once: int

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
    speculative: bool = False

    @property
    def threads_at_once(self) -> int:
        """Fewer than the slice's where floats kept in addition to a 16-bit state need more registers."""
        cut = self.slice
        if self.channel_decay and self.many and cut.rows == _ROWS:
            return min(cut.at_once, 384)
        wide = self.channel_decay or self.many or cut.key_size > _LARGEST_LEAN_KEY
        if cut.state is not DType.FLOAT32 and cut.rows == _ROWS and wide:
            return min(cut.at_once, 448)
        if cut.state is DType.FLOAT16:
            return min(cut.at_once, max(cut.threads, _MOST_HALF_THREADS))
        return cut.at_once

    def source(self) -> KernelSource:
        return KernelSource.of(FILE, ENTRY, self._defines())

    def ring_source(self, dense: bool = False) -> KernelSource:
        """The kernel over states with rings."""
        defines = {**self._defines(), "DENSE": dense, "RING": RING}
        return KernelSource.of(RING_FILE, "gated_delta_rule_ring", defines)

    def _defines(self) -> dict[str, object]:
        cut = self.slice
        return {
            "DATA_T": cut.dtype,
            "STATE_T": cut.state,
            "KEY_SIZE": cut.key_size,
            "VALUE_SIZE": cut.value_size,
            "COLUMN_LANES": cut.column_lanes,
            "ROWS": cut.rows,
            "THREADS": cut.threads,
            "CHANNEL_DECAY": self.channel_decay,
            "NORMED": self.normed,
            "KEY_ACCESS": math.gcd(self.key_bytes // cut.dtype.itemsize, cut.rows),
            "MANY": self.many,
            "SPECULATIVE": self.speculative,
            "AT_ONCE": self.threads_at_once,
        }


def decode_launch(call: DeltaCall, device: DeviceTraits, drafts: bool = False) -> KernelLaunch:
    """One launch, which walks the tokens of a row where it has several. drafts: it keeps the state after each."""
    many = drafts or call.time > 1
    share = _bytes_of_state(call) / device.multiprocessors
    if not many and share > _ONE_WAVE_BYTES and takes_columns(call):
        columns = Columns(call.dtype, call.key_size, call.value_size, call.channel_decay, call.normed)
        launch = _launch(call, device, columns.source(), columns.slices, columns.threads)
        launch.params.ahead = columns.ahead(device)
        return launch
    plain, walked = not (many or call.channel_decay), many and not drafts
    cut = _slice(call.dtype, call.state.dtype, call.key_size, call.value_size, share, plain, walked)
    variant = _Variant(cut, call.channel_decay, call.normed, call.token_access_bytes("q", "k"), many, drafts)
    return _launch(call, device, variant.source(), cut.slices, cut.threads)


def ring_launch(call: DeltaCall, device: DeviceTraits) -> KernelLaunch:
    """One launch over packed rows of at most one token whose states have rings (specs/ring.py).

    The tensors of the rings come after the operator's own inputs.
    """
    dense = call.call.packed is None
    cut = _ring_slice(call.dtype, call.state.dtype, call.key_size, call.value_size, call.channel_decay, dense)
    variant = _Variant(cut, call.channel_decay, call.normed, call.token_access_bytes("q", "k"), many=False)
    params = struct_type(RING_FILE, "GatedDeltaRing")()
    _fill(params.decode, call)
    params.key_heads, params.value_heads = call.key_heads, call.value_heads
    launch = _launch(call, device, variant.ring_source(dense), cut.slices, cut.threads)
    launch = replace(launch, params=params, pointers=ring_pointers(call.call.spec, launch.pointers))
    stream = RingStream.of(call, device)
    return launch if stream is None else stream.launch(launch, call, device)


def _launch(call: DeltaCall, device: DeviceTraits, source: KernelSource, slices: int, threads: int) -> KernelLaunch:
    params = struct_type(FILE, "GatedDeltaDecode")()
    _fill(params, call)
    grid = (params.values_per_key * slices, call.key_heads, call.rows)
    pointers = call.inputs("q", "k", "v", "g", "beta", "state") | call.outputs() | row_pointers(call.call, "rows.")
    return KernelLaunch(source, grid, (threads, 1, 1), params, pointers, overlap=device.is_hopper_or_later)


def _fill(params: Any, call: DeltaCall) -> None:
    call.fill(params)
    params.rows.rows, params.rows.time = call.rows, call.time


def _ring_slice(
    dtype: DType, state: DType, key_size: int, value_size: int, channel_decay: bool, dense: bool = False
) -> Slice:
    lanes, rows, at_once = _RING[state.itemsize]
    cut = Slice(dtype, state, key_size, value_size, lanes, rows, at_once)
    partial = key_size * lanes != cut.threads * rows or value_size % (lanes * ACCESS_BYTES // state.itemsize)
    wide = dense or partial or dtype is DType.FLOAT32
    most = _RING_CHANNELS_AT_ONCE if channel_decay else _WIDE_RING_AT_ONCE if wide else at_once
    return replace(cut, at_once=max(cut.threads, min(at_once, most)))


def decode_sources() -> Iterator[KernelSource]:
    """Every type, cut and form of decay at the usual sizes, and other sizes in bfloat16."""
    for dtype in CUDA_TYPES:
        for state in {DType.FLOAT32, dtype}:
            for share in (0, _ONE_WAVE_BYTES, 2 * _ONE_WAVE_BYTES):
                yield _Variant(_slice(dtype, state, 128, 128, share), False, True, ACCESS_BYTES, False).source()
                larger = _slice(dtype, state, 128, 128, share, plain=False)
                single = _Variant(larger, True, True, ACCESS_BYTES, False)
                yield single.source()
                for channel in (False, True):
                    cut = _ring_slice(dtype, state, 128, 128, channel)
                    yield _Variant(cut, channel, True, ACCESS_BYTES, False).ring_source()
                    cut = _ring_slice(dtype, state, 128, 128, channel, dense=True)
                    yield _Variant(cut, channel, True, ACCESS_BYTES, False).ring_source(dense=True)
                    yield replace(single, many=True, speculative=True, channel_decay=channel).source()
                    walked = _slice(dtype, state, 128, 128, share, plain=False, walked=True)
                    yield _Variant(walked, channel, True, ACCESS_BYTES, True).source()
    for key_size, value_size in ((64, 64), (64, 128), (96, 192), (128, 256), (192, 192), (256, 256), (16, 16)):
        for state in (DType.FLOAT32, DType.BFLOAT16):
            cut = _slice(DType.BFLOAT16, state, key_size, value_size, 2 * _ONE_WAVE_BYTES)
            yield _Variant(cut, False, True, ACCESS_BYTES, False).source()
            yield _Variant(cut, False, False, 2, False).source()
    for key_size, value_size in ((8, 8), (40, 24)):
        for state in (DType.FLOAT32, DType.BFLOAT16):
            for many in (False, True):
                cut = _slice(DType.BFLOAT16, state, key_size, value_size, 0, plain=False, walked=many)
                yield _Variant(cut, False, True, ACCESS_BYTES, many).source()
                cut = _ring_slice(DType.BFLOAT16, state, key_size, value_size, many)
                yield _Variant(cut, many, True, ACCESS_BYTES, False).ring_source()
    yield from columns_sources()
    yield from stream_sources()


def _bytes_of_state(call: DeltaCall) -> int:
    return call.rows * call.value_heads * call.key_size * call.value_size * call.state.dtype.itemsize


def _slice(
    dtype: DType, state: DType, key_size: int, value_size: int, share: float, plain: bool = True, walked: bool = False
) -> Slice:
    """The partition of a head's state, from the bytes of all states per multiprocessor.

    plain: one token a row and one decay a head. walked: several tokens a row, of which only the last one's state is
    stored. docs/explanation/kernels/gated_delta_rule.md has the measurements behind the numbers.
    """
    lanes, rows, at_once = (_WALKED if walked else _MANY_BYTES)[state.itemsize]
    if key_size <= _LARGEST_SMALL_KEY and share <= _ONE_WAVE_BYTES:
        chosen = _LARGER_TOKENS if not plain else _FEW if share <= _FEW_BYTES else _ONE_WAVE
        lanes, rows, at_once = chosen[state.itemsize]
    while rows > _ROWS and key_size % rows:
        rows //= 2
    cut = Slice(dtype, state, key_size, value_size, lanes, rows, at_once)
    return cut if cut.threads <= at_once else replace(cut, at_once=cut.threads)
