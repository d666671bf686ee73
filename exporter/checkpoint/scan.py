"""Streaming scan of weights in bounded memory: non-finite values, and values that the compute type cannot hold."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.artifact.untrusted_file import open_inside
from hybridge.exporter.checkpoint.float_range import FloatRange, float_range

# Bytes that one thread reads and checks at once: few calls, so that a busy interpreter delays the scan little, and
# small enough to stay in a shared cache. A multiple of every item size.
PIECE_BYTES = 1 << 22
THREADS = 2


@dataclass(frozen=True)
class ScanReport:
    """Number of scanned tensors and bytes (floating point only), and remarks for the user."""

    tensors: int
    nbytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """Elements ``start`` to ``stop`` of a tensor that will be computed in ``compute``."""

    slot: TensorSlot
    compute: DType
    start: int
    stop: int


@dataclass(frozen=True)
class _Finding:
    """Result for one piece: the flat index of the first bad value, or None, and how many values become zero."""

    offender: int | None
    zeros: int


def scan_weights(
    targets: Iterable[tuple[TensorSlot, DType]],
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> ScanReport:
    """Scan every floating-point tensor against the type it will be computed in; ends early once ``cancelled`` is set.

    CheckpointError names the first tensor (in the order of ``targets``) with a NaN, an infinity or a value beyond
    the compute type, or whose file cannot be read to its end. A value that float16 rounds to zero is only a note.
    """
    progress = progress or NoProgress()
    work = [(slot, compute) for slot, compute in dict.fromkeys(targets) if slot.dtype.is_floating]
    total = sum(slot.nbytes for slot, _ in work)
    progress.start("scan weights", total, "B")
    zeros: dict[str, int] = {}
    scanner = _Scanner()
    for piece, finding in _judged(scanner, work, cancelled):
        if finding.offender is not None:
            raise _offence(piece, finding.offender, scanner.value(piece.slot, finding.offender))
        if finding.zeros:
            zeros[piece.slot.name] = zeros.get(piece.slot.name, 0) + finding.zeros
        progress.advance((piece.stop - piece.start) * piece.slot.dtype.itemsize)
    return ScanReport(len(work), total, _notes(zeros, work))


def _judged(
    scanner: _Scanner, work: list[tuple[TensorSlot, DType]], cancelled: threading.Event | None
) -> Iterator[tuple[_Piece, _Finding]]:
    """Every piece with its finding, in order; few pieces are in progress at a time."""
    pieces = _pieces(work)
    # Threads help because reading and NumPy's loops release the interpreter lock.
    with ThreadPoolExecutor(THREADS) as pool:
        pending: deque[tuple[_Piece, Future[_Finding]]] = deque()

        def submit(count: int) -> None:
            for piece in itertools.islice(pieces, count):
                pending.append((piece, pool.submit(scanner.judge, piece)))

        try:
            submit(2 * THREADS)
            while pending and not (cancelled and cancelled.is_set()):
                piece, future = pending.popleft()
                yield piece, future.result()
                submit(1)
        finally:
            pool.shutdown(cancel_futures=True)


def _pieces(work: list[tuple[TensorSlot, DType]]) -> Iterator[_Piece]:
    for slot, compute in work:
        step = PIECE_BYTES // slot.dtype.itemsize
        count = math.prod(slot.shape)
        for start in range(0, count, step):
            yield _Piece(slot, compute, start, min(start + step, count))


class _Scanner:
    """Reads pieces into one buffer per thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def judge(self, piece: _Piece) -> _Finding:
        """Check every value of ``piece``."""
        limits = float_range(piece.slot.dtype, piece.compute)
        bits = self._bits(piece, limits)
        if _peak(bits, limits) >= limits.first_bad:
            magnitudes = bits & limits.mask
            return _Finding(piece.start + int(np.argmax(magnitudes >= limits.first_bad)), 0)
        return _Finding(None, self._zeros(bits, limits) if limits.first_nonzero > 1 else 0)

    def value(self, slot: TensorSlot, index: int) -> float:
        """The element at the flat index ``index``."""
        piece = _Piece(slot, slot.dtype, index, index + 1)
        return float(self._bits(piece, float_range(slot.dtype, slot.dtype)).view(slot.dtype.numpy)[0])

    def _bits(self, piece: _Piece, limits: FloatRange) -> np.ndarray:
        """The bit patterns of ``piece``, as unsigned integers, in this thread's buffer."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = np.empty(PIECE_BYTES, np.uint8)
        slot = piece.slot
        raw = self._local.buffer[: (piece.stop - piece.start) * slot.dtype.itemsize]
        _read(slot, slot.offset + piece.start * slot.dtype.itemsize, memoryview(raw))
        return raw.view(limits.unsigned)

    def _zeros(self, bits: np.ndarray, limits: FloatRange) -> int:
        """Number of nonzero values that become zero; overwrites ``bits``."""
        if not hasattr(self._local, "flags"):
            self._local.flags = np.empty(PIECE_BYTES // 2, np.bool_)
        flags = self._local.flags[: bits.size]
        # After dropping the sign and subtracting one, zero is the largest pattern; smaller ones are not zero.
        np.bitwise_and(bits, limits.mask, out=bits)
        np.subtract(bits, limits.unsigned.type(1), out=bits)
        np.less(bits, limits.unsigned.type(limits.first_nonzero - 1), out=flags)
        return int(np.count_nonzero(flags))


def _peak(bits: np.ndarray, limits: FloatRange) -> int:
    """The largest magnitude as a bit pattern, without a copy.

    The largest unsigned pattern is the widest negative value if there is one, and the largest signed pattern the
    widest positive one.
    """
    return max(int(bits.max()) & int(limits.mask), int(bits.view(limits.signed).max()))


def _read(slot: TensorSlot, offset: int, target: memoryview) -> None:
    with open_inside(slot.path.parent, slot.path.name, None, CheckpointError, "fetch it again") as file:
        try:
            while target:
                count = os.preadv(file.fileno(), [target], offset)
                if count == 0:
                    raise CheckpointError(f"{slot.path}: ends inside tensor {slot.name}: fetch it again")
                target, offset = target[count:], offset + count
        except OSError as error:
            raise CheckpointError(f"{slot.path}: tensor {slot.name} cannot be read: {error.strerror}") from error


def _offence(piece: _Piece, flat: int, value: float) -> CheckpointError:
    index = [int(i) for i in np.unravel_index(flat, piece.slot.shape)] if piece.slot.shape else []
    where = f"{piece.slot.path}: tensor {piece.slot.name} holds {value} at index {index}"
    if not math.isfinite(value):
        return CheckpointError(f"{where}: expected finite weights: the checkpoint is damaged")
    wide = DType.BFLOAT16 if piece.compute is DType.FLOAT16 else DType.FLOAT32
    return CheckpointError(f"{where}, which {piece.compute.value} cannot hold: pass `dtype={wide.value!r}`")


def _notes(zeros: dict[str, int], work: list[tuple[TensorSlot, DType]]) -> tuple[str, ...]:
    if not zeros:
        return ()
    scanned = sum(math.prod(slot.shape) for slot, _ in work)
    worst = max(zeros, key=lambda name: zeros[name])
    return (
        f"{sum(zeros.values())} of {scanned} weights, in {len(zeros)} tensor(s), become zero in the compute type "
        f"(most in {worst}: {zeros[worst]})",
    )
