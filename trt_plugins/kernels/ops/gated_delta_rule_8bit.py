"""One token of ``gated_delta_rule`` with states of 8 bits, a quarter of the memory that float32 moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, BYTE_TYPES
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.rows import row_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.state_8bit import STATE_SCALES

FILE, ENTRY = "gated_delta_rule/decode_bytes.cu", "gated_delta_rule_bytes"
_WARP = 32
_COLUMNS = 8  # of one access
_ROWS = 8  # of the state, of a thread
# Threads side by side in a row of the state: fewer, and so more blocks, where there are few states.
_MANY_LANES, _FEW_LANES = 8, 4
_FEW_HEADS = 2  # per multiprocessor
# Threads of a multiprocessor that registers are to allow.
_MANY_AT_ONCE, _FEW_AT_ONCE, _INT8_AT_ONCE = 512, 384, 640


@dataclass(frozen=True)
class _Variant:
    """The macros of decode_bytes.cu."""

    dtype: DType
    state: DType
    key_size: int
    value_size: int
    lanes: int
    channel_decay: bool
    normed: bool
    key_access: int

    @property
    def threads(self) -> int:
        return -(-self.key_size // _ROWS * self.lanes // _WARP) * _WARP

    @property
    def slices(self) -> int:
        """Blocks that share a head."""
        return -(-self.value_size // (self.lanes * _COLUMNS))

    @property
    def threads_at_once(self) -> int:
        if self.lanes < _MANY_LANES:
            return max(self.threads, _FEW_AT_ONCE)
        small = self.state is DType.INT8 and not self.channel_decay
        return max(self.threads, _INT8_AT_ONCE if small else _MANY_AT_ONCE)

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "STATE_T": BYTE_TYPES[self.state],
            "KEY_SIZE": self.key_size,
            "VALUE_SIZE": self.value_size,
            "COLUMN_LANES": self.lanes,
            "ROWS": _ROWS,
            "THREADS": self.threads,
            "CHANNEL_DECAY": self.channel_decay,
            "NORMED": self.normed,
            "KEY_ACCESS": self.key_access,
            "MANY": False,
            "SPECULATIVE": False,
            "AT_ONCE": self.threads_at_once,
        }
        # Others spill up to 20 bytes on some GPUs; on an H200 fewer threads at once were slower.
        hot = self.state is DType.INT8 and self.threads_at_once < _INT8_AT_ONCE
        return KernelSource.of(FILE, ENTRY, defines, hot)


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """One launch; UnsupportedError for more than one token per row, and as the plan for wider states."""
    delta = DeltaCall.of(call)
    if delta.time > 1 or (call.packed is not None and call.packed.draft_slots):
        raise UnsupportedError(
            f"{call.spec.name}: expected one token per row, found {delta.time}: use a state of 16 or 32 bits"
        )
    launch = _launch(delta, device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """Every type and form of decay at the usual sizes, and other sizes in bfloat16."""
    for dtype in CUDA_TYPES:
        for state in BYTE_TYPES:
            for channels in (False, True):
                usual = _Variant(
                    dtype, state, 128, 128, _MANY_LANES, channels, True, ACCESS_BYTES // max(2, dtype.itemsize)
                )
                yield from (usual.source(), replace(usual, lanes=_FEW_LANES).source())
    for state in BYTE_TYPES:
        for key_size, value_size in ((64, 64), (96, 192), (256, 256), (40, 24), (8, 8)):
            sized = _Variant(DType.BFLOAT16, state, key_size, value_size, _FEW_LANES, False, False, 1)
            yield sized.source()


def _launch(call: DeltaCall, device: DeviceTraits) -> KernelLaunch:
    heads = call.rows * call.value_heads / device.multiprocessors
    many = heads >= _FEW_HEADS and call.value_size >= _MANY_LANES * _COLUMNS
    lanes = _MANY_LANES if many else _FEW_LANES
    key_access = math.gcd(call.token_access_bytes("q", "k") // call.dtype.itemsize, _ROWS)
    variant = _Variant(
        call.dtype,
        call.state.dtype,
        call.key_size,
        call.value_size,
        lanes,
        call.channel_decay,
        call.normed,
        key_access,
    )
    params = struct_type(FILE, "GatedDeltaBytes")()
    call.fill(params.decode)
    params.decode.rows.rows, params.decode.rows.time = call.rows, call.time
    params.scales_slot = call.value_heads * call.value_size
    pointers = call.inputs("q", "k", "v", "g", "beta", "state") | call.outputs() | row_pointers(call.call, "rows.")
    pointers = {f"decode.{name}": source for name, source in pointers.items()}
    scales = PointerSource(Memory.INPUT, call.call.spec.input_index(STATE_SCALES))
    pointers |= {"state_scales": scales, "state_scales_out": PointerSource(Memory.OUTPUT, 2)}
    grid = (params.decode.values_per_key * variant.slices, call.key_heads, call.rows)
    overlap = device.is_hopper_or_later
    return KernelLaunch(variant.source(), grid, (variant.threads, 1, 1), params, pointers, overlap=overlap)
