"""``activate``: the activation between two matrix products, in place and in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "activate/activate.cu"
_ACCESS_BYTES = 16
_THREADS, _ITEMS = 256, 4
_LARGEST_GRID = 2**31 - 1


@dataclass(frozen=True)
class Activate:
    """y = relu(y)² (relu2) or silu(y) * up (silu_gate) for ``count`` elements, which fill whole accesses of 16 bytes.

    Input: up, absent for relu2; output: y, which is read too. Both are contiguous at multiples of 16 bytes.
    """

    count: int
    dtype: DType
    activation: Literal["relu2", "silu_gate"]

    def __post_init__(self) -> None:
        fits = self.dtype in CUDA_TYPES and self.count > 0 and self.count * self.dtype.itemsize % _ACCESS_BYTES == 0
        if not fits:
            raise UnsupportedError(
                f"activate: expected whole accesses of {_ACCESS_BYTES} bytes of {', '.join(CUDA_TYPES)}, found "
                f"{self.count} elements of {self.dtype.value}; use a framework's operators"
            )

    @property
    def vector(self) -> int:
        """Elements of an access."""
        return _ACCESS_BYTES // self.dtype.itemsize

    @property
    def is_gated(self) -> bool:
        return self.activation == "silu_gate"


def plan(problem: Activate, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``; UnsupportedError for more elements than a grid takes."""
    params = struct_type(FILE, "Activate")()
    params.accesses = problem.count // problem.vector
    blocks = -(-params.accesses // (_THREADS * _ITEMS))
    if blocks > _LARGEST_GRID:
        raise UnsupportedError(f"activate: expected at most {_LARGEST_GRID} blocks, found {blocks}; split the call")
    pointers = {"y": PointerSource(Memory.OUTPUT, 0)}
    if problem.is_gated:
        pointers["up"] = PointerSource(Memory.INPUT, 0)
    overlap = device.is_hopper_or_later
    launch = KernelLaunch(_source(problem), (blocks, 1, 1), (_THREADS, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name="activate")


def sources() -> Iterator[KernelSource]:
    """Every type and activation."""
    for dtype, activation in itertools.product(CUDA_TYPES, ("relu2", "silu_gate")):
        yield _source(Activate(8, dtype, activation))  # type: ignore[arg-type]


def _source(problem: Activate) -> KernelSource:
    defines = {
        "DATA_T": problem.dtype,
        "GATED": problem.is_gated,
        "VECTOR": problem.vector,
        "ITEMS": _ITEMS,
        "THREADS": _THREADS,
    }
    return KernelSource.of(FILE, "activate", defines)
