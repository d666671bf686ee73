"""``gather_rows``: y[i] = table[indices[i]], the embeddings of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "gather_rows/gather_rows.cu"
_INDEX_TYPES = (DType.INT64, DType.INT32)
_ACCESS = 16
_THREADS = 256


@dataclass(frozen=True)
class GatherRows:
    """Rows of ``row_bytes`` by ``count`` indices, int64 or int32, which are in range. Inputs: table, indices; output:
    y. Table and y are contiguous at addresses that are multiples of 16.
    """

    count: int
    row_bytes: int
    index_dtype: DType

    def __post_init__(self) -> None:
        fits = self.row_bytes > 0 and self.row_bytes % _ACCESS == 0 and self.count > 0
        if not fits or self.index_dtype not in _INDEX_TYPES:
            raise UnsupportedError(
                f"gather_rows: expected indices of int64 or int32 to rows of a multiple of {_ACCESS} bytes, found "
                f"{self.count} of {self.index_dtype.value} to {self.row_bytes} bytes; index the table in torch"
            )


def plan(problem: GatherRows, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``."""
    params = struct_type(FILE, "GatherRows")()
    params.row_bytes = problem.row_bytes
    pointers = {
        "table": PointerSource(Memory.INPUT, 0),
        "indices": PointerSource(Memory.INPUT, 1),
        "y": PointerSource(Memory.OUTPUT, 0),
    }
    source, overlap = _source(problem.index_dtype), device.is_hopper_or_later
    launch = KernelLaunch(source, (problem.count, 1, 1), (_THREADS, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name="gather_rows")


def sources() -> Iterator[KernelSource]:
    """The kernel for both types of indices."""
    for dtype in _INDEX_TYPES:
        yield _source(dtype)


def _source(dtype: DType) -> KernelSource:
    return KernelSource.of(FILE, "gather_rows", {"INDEX_T": f"{dtype.value}_t", "THREADS": _THREADS})
