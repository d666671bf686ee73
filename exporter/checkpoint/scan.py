"""Streaming scan of weights in bounded memory: non-finite values, and values that the compute type cannot hold.

Works on bit patterns: the largest magnitude of a block, as an unsigned integer without its sign bit, orders like
the floating-point value, and non-finite values come last.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from artifact.dtypes import DType
from artifact.errors import CheckpointError
from artifact.progress import NoProgress, Progress
from artifact.safetensors_file import TensorSlot

# Bytes read at once per thread; a multiple of every item size, small enough to stay in the L2 cache.
BLOCK_BYTES = 1 << 19
THREADS = 2
# First bit pattern (sign removed) that is not finite, by stored type.
NON_FINITE = {DType.BFLOAT16: 0x7F80, DType.FLOAT16: 0x7C00, DType.FLOAT32: 0x7F800000}
# Least magnitude that rounds to infinity, by compute type (float16: halfway above 65504).
OVERFLOW = {DType.FLOAT16: 65520.0, DType.BFLOAT16: 3.3961775e38, DType.FLOAT32: np.inf}
SMALLEST_SUBNORMAL_FLOAT16 = 2.0**-24


@dataclass(frozen=True)
class ScanReport:
    """How much was scanned, and remarks for the user."""

    tensors: int
    nbytes: int
    notes: tuple[str, ...] = ()


def scan_weights(
    targets: Iterable[tuple[TensorSlot, DType]],
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> ScanReport:
    """Scan every tensor against the type that it will be computed in; ends early once ``cancelled`` is set.

    CheckpointError names the first tensor that holds a NaN or infinity, or a value beyond the compute type.
    """
    work, progress = list(targets), progress or NoProgress()
    total = sum(slot.nbytes for slot, _ in work)
    progress.start("scan weights", total, "B")
    lost = 0
    # Threads pay because NumPy's reductions release the interpreter lock.
    with ThreadPoolExecutor(THREADS) as pool:
        slots, computes = [slot for slot, _ in work], [compute for _, compute in work]
        results = pool.map(_scan_tensor, slots, computes, repeat(cancelled))
        for slot, compute, (peak, zeros) in zip(slots, computes, results, strict=True):
            if cancelled and cancelled.is_set():
                break
            _check_peak(slot, compute, peak)
            lost += zeros > 0
            progress.advance(slot.nbytes)
    notes = (f"{lost} tensor(s) hold values that float16 rounds to zero",) if lost else ()
    return ScanReport(len(work), total, notes)


def _scan_tensor(slot: TensorSlot, compute: DType, cancelled: threading.Event | None) -> tuple[int, int]:
    """The largest bit pattern without sign, and how many values a cast to float16 would turn into zero."""
    bits = np.dtype(np.uint16 if slot.dtype.itemsize == 2 else np.uint32)
    mask = bits.type((1 << (8 * bits.itemsize - 1)) - 1)
    buffer = np.empty(BLOCK_BYTES // bits.itemsize, bits)
    peak = zeros = 0
    narrowing = compute is DType.FLOAT16 and slot.dtype is not DType.FLOAT16
    handle = os.open(slot.path, os.O_RDONLY)
    try:
        offset, end = slot.offset, slot.offset + slot.nbytes
        while offset < end and not (cancelled and cancelled.is_set()):
            view = memoryview(buffer.data).cast("B")[: min(BLOCK_BYTES, end - offset)]
            count = os.preadv(handle, [view], offset)
            if count <= 0:
                raise CheckpointError(f"{slot.path.name}: ends inside tensor {slot.name}: truncated; fetch it again")
            count -= count % bits.itemsize
            block = buffer[: count // bits.itemsize]
            np.bitwise_and(block, mask, out=block)
            peak = max(peak, int(block.max()))
            if narrowing:
                zeros += int(np.count_nonzero(block) - np.count_nonzero(block >= _first_kept(slot.dtype)))
            offset += count
    finally:
        os.close(handle)
    return peak, zeros


def _first_kept(dtype: DType) -> int:
    """The smallest bit pattern of ``dtype`` that float16 does not round to zero (half its least subnormal is tied)."""
    smallest = np.array([np.nextafter(np.float32(SMALLEST_SUBNORMAL_FLOAT16 / 2), np.float32(1))], np.float32)
    pattern = int(smallest.view(np.uint32)[0])
    return pattern if dtype is DType.FLOAT32 else (pattern >> 16) + 1


def _check_peak(slot: TensorSlot, compute: DType, peak: int) -> None:
    if peak >= NON_FINITE[slot.dtype]:
        index, value = _first_offender(slot, np.inf)
        raise CheckpointError(
            f"tensor {slot.name} holds {value} at index {index}: expected finite weights: the checkpoint is damaged"
        )
    unsigned = np.uint16 if slot.dtype.itemsize == 2 else np.uint32
    magnitude = float(np.array([peak], unsigned).view(slot.dtype.numpy)[0])
    if magnitude >= OVERFLOW[compute]:
        index, value = _first_offender(slot, OVERFLOW[compute])
        raise CheckpointError(
            f"tensor {slot.name} holds {value} at index {index}, beyond {compute.value}: pass another --dtype"
        )


def _first_offender(slot: TensorSlot, limit: float) -> tuple[tuple[int, ...], float]:
    """Index and value of the first element that is not finite or not below ``limit`` in magnitude."""
    values = slot.map()
    with np.errstate(invalid="ignore"):
        flat = int(np.argmax(~(np.abs(values.astype(np.float32)) < limit)))
    index = np.unravel_index(flat, values.shape) if values.ndim else ()
    return tuple(int(i) for i in index), float(values.reshape(-1)[flat])
