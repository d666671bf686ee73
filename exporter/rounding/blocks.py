"""Reading and processing a checkpoint's weights in blocks of rows, in several threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot

# Weights of a block; each takes about 40 bytes of memory while it is rounded.
BLOCK = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def row_blocks(rows: int, columns: int, block: int = BLOCK, at_once: int = 1) -> Iterator[slice]:
    """Ranges of rows that hold about ``block`` weights each; all but the last have a multiple of ``at_once`` rows."""
    step = max(1, block // max(1, columns * at_once)) * at_once
    yield from (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """The result of ``function`` for each item, in order; at most a few are computed ahead."""
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def float32_rows(slot: TensorSlot, block: slice) -> np.ndarray:
    """Rows of a weight [rows, columns]; CheckpointError when one is not finite."""
    stored = slot.map()[block]
    if slot.dtype is DType.BFLOAT16:
        weights = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        weights = stored.astype(np.float32)
    if not np.isfinite(weights).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(weights))[0])
        place = [(block.start or 0) + row, column]
        raise CheckpointError(
            f"{slot.path}: tensor {slot.name} holds {weights[row, column]} at index {place}: "
            "expected finite weights: the checkpoint is damaged"
        )
    return weights


def float32_vector(slot: TensorSlot) -> np.ndarray:
    """A tensor [entries]; CheckpointError as in ``float32_rows``."""
    column = replace(slot, shape=(slot.shape[0], 1))
    return float32_rows(column, slice(None))[:, 0]


def peak_of(slot: TensorSlot) -> float:
    """The largest magnitude of a weight, 0 without any; CheckpointError as in ``float32_rows``."""
    rows, columns = slot.shape
    sizes = in_threads(lambda part: np.abs(float32_rows(slot, part)).max(initial=0), row_blocks(rows, columns))
    return float(max(sizes, default=0))
