"""Kernels of ``causal_conv1d``: a shift of the state for one token per row, a sliding window for more.

The state of widths from 5 on that are no power of two is shifted in shared memory.

Draft tokens of speculative rows shift the state one after another, each to its own slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.ops.draft_rows import is_speculative, plan_drafts
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride, row_pointers
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

UPDATE_FILE = "causal_conv1d/shift_update.cu"
SHARED_FILE = "causal_conv1d/shift_shared.cu"
PREFILL_FILE = "causal_conv1d/sliding_window.cu"
DRAFTS_FILE = "causal_conv1d/shift_drafts.cu"
_ACCESS_BYTES = 16
_WARP = 32
_PREFILL_THREADS = 128
_STEP = 16
_DRAFT_INPUTS = 8  # of a thread, loaded before the first of them is used; at most half as many tokens
_LARGEST_GRID_YZ = 65535
# Tokens of a block. A block reads KERNEL - 1 tokens before its own again, which longer blocks do less often; they are
# taken where enough of them are left to fill the GPU many times over.
_LONG_BLOCK_TOKENS = 2 * _STEP
_LONG_BLOCKS = 32  # per multiprocessor
# Large blocks, as the rate at which blocks start is a bound; small updates take more multiprocessors.
_UPDATE_THREADS, _SMALL_UPDATE_THREADS = 256, 64
_SMALL_UPDATES = 512  # threads per multiprocessor
_DRAFT_THREADS = 128
# Of the kernel with shared memory: threads of a block, and the least width that it takes.
_SHARED_THREADS, _LEAST_SHARED_WIDTH = 128, 5
# Its rows of a thread where there would be so many blocks for each multiprocessor; else one.
_SHARED_ROWS, _SHARED_ROWS_BLOCKS = 2, 48
# Blocks a multiprocessor that prefetch while the kernel before still runs; more of them only ask for everything twice.
_PREFETCH_BLOCKS = 2


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``call``; UnsupportedError for widths outside of 2 to 8 or strided channels.

    x and y: the last axis contiguous; the states: the last two. Addresses are multiples of 16 bytes.
    """
    if is_speculative(call):
        return plan_drafts(call, lambda rows: _Convolution(rows).drafts(device), lambda rows: plan(rows, device))
    conv = _Convolution(call)
    launch = conv.update(device) if conv.time == 1 else conv.prefill(device)
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """Both algorithms: every type at width 4, with one channel a thread too, and every width in bfloat16."""
    for dtype in CUDA_TYPES:
        for activation in ("none", "silu"):
            for channels in {_update_channels(dtype, 4), 1}:
                for threads in (_SMALL_UPDATE_THREADS, _UPDATE_THREADS):
                    yield _update_source(dtype, 4, activation, channels, threads)
                for threads in (_SMALL_UPDATE_THREADS, _DRAFT_THREADS):
                    yield _drafts_source(dtype, 4, activation, channels, threads)
            for channels in (_vector_channels(dtype), 1):
                yield _prefill_source(dtype, 4, activation, channels)
            yield from (_shared_source(dtype, 7, activation, rows) for rows in (1, _SHARED_ROWS))
    for width in range(2, 9):
        yield _shared_source(DType.BFLOAT16, width, "silu", _SHARED_ROWS)
        yield _update_source(DType.BFLOAT16, width, "silu", _update_channels(DType.BFLOAT16, width), _UPDATE_THREADS)
        yield _drafts_source(DType.BFLOAT16, width, "silu", _update_channels(DType.BFLOAT16, width), _DRAFT_THREADS)
        yield _prefill_source(DType.BFLOAT16, width, "silu", _vector_channels(DType.BFLOAT16))


class _Convolution:
    """One call with the sizes that choose its kernel."""

    def __init__(self, call: OpCall) -> None:
        self.call = call
        self.x, self.state = call.input("x"), call.input("conv_state")
        self.y, self.state_out = call.outputs
        for name, layout, axes in (("x", self.x, 1), ("y", self.y, 1), ("weight", call.input("weight"), 3)):
            layout.need_dense_tail(name, axes)
        self.state.need_dense_tail("conv_state", 2)
        self.state_out.need_dense_tail("conv_state_out", 2)
        self.dtype = self.x.dtype
        self.channels, self.width = self.state.shape[1:]
        call.spec.check_kernel_dims({"conv_dim": self.channels, "kernel": self.width})
        self.activation = str(call.attributes["activation"])
        packed = call.packed
        self.rows = packed.rows if packed is not None else self.x.shape[0]
        dense_time = self.x.shape[1] if len(self.x.shape) == 3 else 1
        self.time = packed.max_row_tokens if packed is not None else dense_time

    def update(self, device: DeviceTraits) -> KernelLaunch:
        """One token per row (or none)."""
        if self._takes_shared():
            return self._shared_update(device)
        channels = self._channels(_update_channels(self.dtype, self.width))
        threads = self._update_threads(channels, _UPDATE_THREADS, device)
        source = _update_source(self.dtype, self.width, self.activation, channels, threads)
        grid = (_blocks(self.channels, channels * threads), self.rows, 1)
        return self._launch(source, grid, threads, device)

    def _takes_shared(self) -> bool:
        """Whether a thread's channels would take many accesses, and runs of 16 bytes are the whole state of a row."""
        if not self.width & (self.width - 1) or self.width < _LEAST_SHARED_WIDTH:
            return False
        item, weight = self.dtype.itemsize, self.call.input("weight")
        strides = (self.state.strides[0] * item, self.state_out.strides[0] * item, self.channels * self.width * item)
        alignments = (layout.alignment for layout in (self.state, self.state_out, weight))
        vector = _vector_channels(self.dtype)
        return math.gcd(_ACCESS_BYTES, *strides, *alignments) == _ACCESS_BYTES and self._channels(vector) == vector

    def _shared_update(self, device: DeviceTraits) -> KernelLaunch:
        across = _blocks(self.channels, _vector_channels(self.dtype) * _SHARED_THREADS)
        rows = _SHARED_ROWS if across * self.rows >= _SHARED_ROWS_BLOCKS * device.multiprocessors else 1
        source = _shared_source(self.dtype, self.width, self.activation, rows)
        return self._launch(source, (across, _blocks(self.rows, rows), 1), _SHARED_THREADS, device)

    def _update_threads(self, channels: int, most: int, device: DeviceTraits) -> int:
        """Threads of a block, ``most`` or, where there are few in all, a small number."""
        small = _blocks(self.channels, channels) * self.rows < _SMALL_UPDATES * device.multiprocessors
        return _SMALL_UPDATE_THREADS if small else most

    def drafts(self, device: DeviceTraits) -> KernelLaunch:
        """A few tokens per row, walked, with a state after each."""
        channels = self._channels(_update_channels(self.dtype, self.width))
        threads = self._update_threads(channels, _DRAFT_THREADS, device)
        source = _drafts_source(self.dtype, self.width, self.activation, channels, threads)
        return self._launch(source, (_blocks(self.channels, channels * threads), self.rows, 1), threads, device)

    def prefill(self, device: DeviceTraits) -> KernelLaunch:
        """Several tokens per row."""
        channels = self._channels(_vector_channels(self.dtype))
        across = _blocks(self.channels, channels * _PREFILL_THREADS)
        long_blocks = across * _blocks(self.time, _LONG_BLOCK_TOKENS) * self.rows
        tokens = _LONG_BLOCK_TOKENS if long_blocks >= _LONG_BLOCKS * device.multiprocessors else _STEP
        source = _prefill_source(self.dtype, self.width, self.activation, channels)
        grid = (across, _blocks(self.time, tokens), self.rows)
        return self._launch(source, grid, _PREFILL_THREADS, device, tokens)

    def _channels(self, requested: int) -> int:
        """``requested`` channels per thread, or 1 where a size or stride would break the alignment of its accesses."""
        strides = (*row_and_token_stride(self.call, self.x, 1), *row_and_token_stride(self.call, self.y, 1))
        vector = math.gcd(requested, self.channels, *strides) == requested
        vector &= min(self.x.alignment, self.y.alignment) >= requested * self.dtype.itemsize
        run = (
            math.gcd(requested * self.width, self.state.strides[0], self.state_out.strides[0]) == requested * self.width
        )
        return requested if vector and run else 1

    def _launch(
        self, source: KernelSource, grid: tuple[int, int, int], threads: int, device: DeviceTraits, tokens: int = 1
    ) -> KernelLaunch:
        if max(grid[1:]) > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"causal_conv1d: expected at most {_LARGEST_GRID_YZ} rows and as many blocks of tokens, "
                f"found a grid of {grid}: split the call"
            )
        params = struct_type(source.file, "CausalConv1d")()
        params.x_row_stride, params.x_token_stride = row_and_token_stride(self.call, self.x, 1)
        params.y_row_stride, params.y_token_stride = row_and_token_stride(self.call, self.y, 1)
        params.state_stride, params.state_out_stride = self.state.strides[0], self.state_out.strides[0]
        params.rows.rows, params.rows.time = self.rows, self.time
        params.channels, params.block_tokens = self.channels, tokens
        params.prefetch_blocks = _PREFETCH_BLOCKS * device.multiprocessors
        overlap = device.is_hopper_or_later
        return KernelLaunch(source, grid, (threads, 1, 1), params, _pointers(self.call), overlap=overlap)


def _pointers(call: OpCall) -> dict[str, PointerSource]:
    spec = call.spec
    pointers = {
        name: PointerSource(Memory.INPUT, spec.input_index(tensor))
        for name, tensor in (("x", "x"), ("weight", "weight"), ("state", "conv_state"))
    }
    if call.inputs[spec.input_index("bias")] is not None:
        pointers["bias"] = PointerSource(Memory.INPUT, spec.input_index("bias"))
    pointers |= {"y": PointerSource(Memory.OUTPUT, 0), "state_out": PointerSource(Memory.OUTPUT, 1)}
    return pointers | row_pointers(call, "rows.")


def _update_channels(dtype: DType, width: int) -> int:
    """Channels whose state is one 16-byte access; for widths that no such number fits, those of a 4-byte one."""
    bytes_a_channel = dtype.itemsize * width
    return _ACCESS_BYTES // bytes_a_channel if _ACCESS_BYTES % bytes_a_channel == 0 else max(1, 4 // dtype.itemsize)


def _vector_channels(dtype: DType) -> int:
    """Channels of one 4-byte access: the registers that wider ones would take hold more tokens in flight instead."""
    return max(1, 4 // dtype.itemsize)


def _update_source(dtype: DType, width: int, activation: str, channels: int, threads: int) -> KernelSource:
    more = {"CHANNELS": channels, "THREADS": threads}
    return KernelSource.of(UPDATE_FILE, "causal_conv1d_update", _defines(dtype, width, activation, **more))


def _shared_source(dtype: DType, width: int, activation: str, rows: int) -> KernelSource:
    more = {"ROWS": rows, "THREADS": _SHARED_THREADS}
    return KernelSource.of(SHARED_FILE, "causal_conv1d_update_shared", _defines(dtype, width, activation, **more))


def _drafts_source(dtype: DType, width: int, activation: str, channels: int, threads: int) -> KernelSource:
    step = min(_DRAFT_INPUTS // 2, _DRAFT_INPUTS // channels)
    more = {"CHANNELS": channels, "STEP": step, "THREADS": threads}
    return KernelSource.of(DRAFTS_FILE, "causal_conv1d_drafts", _defines(dtype, width, activation, **more))


def _prefill_source(dtype: DType, width: int, activation: str, channels: int) -> KernelSource:
    more = {"CHANNELS": channels, "STEP": _STEP, "THREADS": _PREFILL_THREADS}
    return KernelSource.of(PREFILL_FILE, "causal_conv1d_prefill", _defines(dtype, width, activation, **more))


def _defines(dtype: DType, width: int, activation: str, **more: int) -> dict[str, object]:
    return {"DATA_T": dtype, "KERNEL": width, "SILU": activation == "silu", **more}


def _blocks(size: int, of: int) -> int:
    return -(-size // of)
