"""``most_likely``: the most likely token of each row of logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "sampling/most_likely.cu"
_THREADS, _ACCESS = 256, 4
# Accesses of a thread: few, as a row's slices are read at the same time.
_ACCESSES = 2
_MOST_ROWS = 65535
_KEY_BYTES, _COUNT_BYTES = 8, 4


@dataclass(frozen=True)
class MostLikely:
    """Input: logits [rows, vocab] float32, at a multiple of 16. Outputs, twice the same: tokens int64 [rows], the first
    of equals; -1 where a logit is NaN or +inf, or all are -inf. One may be in host memory, the other serves kernels.
    """

    rows: int
    vocab: int

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= _MOST_ROWS and self.vocab > 0):
            raise UnsupportedError(
                f"most_likely: expected 1 to {_MOST_ROWS} rows of logits, found {self.rows} of {self.vocab}; "
                "use argmax of torch"
            )


def plan(problem: MostLikely, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``."""
    access = _ACCESS if problem.vocab % _ACCESS == 0 else 1
    params = struct_type(FILE, "MostLikely")()
    params.vocab, params.slice = problem.vocab, access * _ACCESSES * _THREADS
    pointers = {
        "logits": PointerSource(Memory.INPUT, 0),
        "tokens": PointerSource(Memory.OUTPUT, 0),
        "copy": PointerSource(Memory.OUTPUT, 1),
        "best": PointerSource(Memory.COUNTERS),
        "arrived": PointerSource(Memory.COUNTERS, offset=_KEY_BYTES * problem.rows),
    }
    grid, overlap = (-(-problem.vocab // params.slice), problem.rows, 1), device.is_hopper_or_later
    launch = KernelLaunch(_source(access), grid, (_THREADS, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name="most_likely", counter_bytes=(_KEY_BYTES + _COUNT_BYTES) * problem.rows)


def sources() -> Iterator[KernelSource]:
    """The kernel for rows aligned to 16 bytes and for others."""
    for access in (_ACCESS, 1):
        yield _source(access)


def _source(access: int) -> KernelSource:
    return KernelSource.of(FILE, "most_likely", {"THREADS": _THREADS, "VECTOR": access, "ACCESSES": _ACCESSES})
