"""``rms_norm``: root-mean-square norm of rows or groups of columns, with a residual sum or a gate fused in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "norm/rms_norm.cu"
# Inputs and outputs of a launch in this order; 0 is passed for the address of one that is absent.
INPUTS = ("x", "residual", "gate", "weight")
OUTPUTS = ("y", "sum")
_ACCESS_BYTES = 16
_THREADS = (128, 256, 512, 1024)
_MOST_ITEMS = 4
_LARGEST_GRID_YZ = 65535
_LARGEST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class RmsNorm:
    """y = v / sqrt(mean(v²) + epsilon) * weight for every row, with the mean over each ``group`` of columns.

    rows, columns: of x and y. group: a divisor of columns (None: all of them). dtype: of all tensors.
    residual: v = x + residual, rounded to dtype, which is also written to ``sum`` (maybe x's or residual's memory).
    gate: v = x * silu(gate). gate_after: y is multiplied by silu(gate) instead.
    weight_dtype: of the weight, None for that of the other tensors.
    strides: elements from a row to the next of x, residual, gate, y and sum by name; absent where the rows touch.

    Addresses are multiples of 16 bytes. The weight is constant: it may be read before earlier kernels of the stream
    have finished.
    """

    rows: int
    columns: int
    dtype: DType
    epsilon: float
    group: int | None = None
    residual: bool = False
    gate: bool = False
    strides: tuple[tuple[str, int], ...] = ()
    gate_after: bool = False
    weight_dtype: DType | None = None

    def __post_init__(self) -> None:
        _need(1 <= self.rows <= _LARGEST_ROWS, f"1 to {_LARGEST_ROWS} rows", f"{self.rows}; split the call")
        for dtype in (self.dtype, self.stored_weight):
            _need(dtype in CUDA_TYPES, f"one of the types {', '.join(CUDA_TYPES)}", f"{dtype.value}; convert")
        groups = self.group_columns > 0 and self.columns % self.group_columns == 0
        _need(groups, f"groups that divide {self.columns} columns", f"{self.group_columns}; choose a divisor")
        extras = self.residual + self.gate + self.gate_after
        _need(extras <= 1, "a residual or one gate", "several of them; add or multiply the others apart")
        known = {"x", "y", "residual", "gate", "sum"}
        unknown = sorted(name for name, _ in self.strides if name not in known)
        _need(not unknown, f"strides of {', '.join(sorted(known))}", f"{', '.join(unknown)}; remove them")

    @property
    def group_columns(self) -> int:
        return self.columns if self.group is None else self.group

    @property
    def stored_weight(self) -> DType:
        return self.dtype if self.weight_dtype is None else self.weight_dtype

    def stride(self, name: str) -> int:
        """Elements from a row of tensor ``name`` to the next."""
        return dict(self.strides).get(name, self.columns)


def plan(problem: RmsNorm, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``; UnsupportedError for groups that do not fit in a block's registers."""
    source, threads = _source(problem)
    params = struct_type(FILE, "RmsNorm")()
    for name in ("x", "residual", "gate", "y", "sum"):
        setattr(params, f"{name}_stride", problem.stride(name))
    params.rows, params.columns, params.group = problem.rows, problem.columns, problem.group_columns
    params.epsilon = problem.epsilon
    pointers = {"x": PointerSource(Memory.INPUT, 0), "weight": PointerSource(Memory.INPUT, 3)}
    pointers["y"] = PointerSource(Memory.OUTPUT, 0)
    if problem.residual:
        pointers |= {"residual": PointerSource(Memory.INPUT, 1), "sum": PointerSource(Memory.OUTPUT, 1)}
    if problem.gate or problem.gate_after:
        pointers["gate"] = PointerSource(Memory.INPUT, 2)
    layers = -(-problem.rows // _LARGEST_GRID_YZ)
    grid = (problem.columns // problem.group_columns, -(-problem.rows // layers), layers)
    overlap = device.is_hopper_or_later
    launch = KernelLaunch(source, grid, (threads, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name=source.label)


def sources() -> Iterator[KernelSource]:
    """Every type in the three forms, groups of 1,024 and of 4,096 columns, and columns that are not aligned."""
    for dtype in CUDA_TYPES:
        for columns in (1024, 4096, 129):
            yield _source(RmsNorm(1, columns, dtype, 1e-5))[0]
            yield _source(RmsNorm(1, columns, dtype, 1e-5, residual=True))[0]
            yield _source(RmsNorm(1, columns, dtype, 1e-5, gate=True))[0]
        yield _source(RmsNorm(1, 128, dtype, 1e-5, gate_after=True))[0]
        yield _source(RmsNorm(1, 2048, dtype, 1e-5, weight_dtype=DType.FLOAT32))[0]


def _source(problem: RmsNorm) -> tuple[KernelSource, int]:
    """The variant and its threads: as few accesses per thread as the largest block allows."""
    strides = (problem.stride(name) for name in ("x", "residual", "gate", "y", "sum"))
    vector = math.gcd(_ACCESS_BYTES // problem.dtype.itemsize, problem.group_columns, *strides)
    accesses = -(-problem.group_columns // vector)
    threads = next((count for count in _THREADS if accesses <= count), _THREADS[-1])
    items = -(-accesses // threads)
    if items > _MOST_ITEMS:
        raise UnsupportedError(
            f"rms_norm: expected groups of at most {_THREADS[-1] * _MOST_ITEMS * vector} columns at this alignment, "
            f"found {problem.group_columns}; align rows to {_ACCESS_BYTES} bytes or use a framework's norm"
        )
    defines = {
        "DATA_T": problem.dtype,
        "WEIGHT_T": problem.stored_weight,
        "VECTOR": vector,
        "ITEMS": items,
        "THREADS": threads,
        "RESIDUAL": problem.residual,
        "GATED": problem.gate,
        "GATED_AFTER": problem.gate_after,
    }
    return KernelSource.of(FILE, "rms_norm", defines), threads


def _need(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UnsupportedError(f"rms_norm: expected {expected}, found {found}")
