"""``linear_decode``: y = epilogue(x · Wᵀ) for a few rows of x, at the speed of reading the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS, WeightFormat, formats
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

BULK_FILE = "linear_decode/bulk_copies.cu"
COPY_FILE = "linear_decode/row_copies.cu"
TILE_FILE = "linear_decode/tiles.cu"
Activation = Literal["none", "relu2", "silu_gate"]
ACTIVATIONS: tuple[Activation, ...] = ("none", "relu2", "silu_gate")
LARGEST_ROWS = 16
LARGEST_NORM_ROWS = 8
# Inputs of a launch in this order; 0 is passed for the address of one that is absent.
INPUTS = ("x", "weight", "up_weight", "bias", "residual", "norm_weight", "factors", "up_factors")
_ACCESS = 8  # elements of 16 bytes
# Groups of 8 weight rows of a pass; with bulk copies, of tiles by bits of a weight: stages of the same size.
_GROUPS = 2
_BULK_TILE_GROUPS = {4: 4, 8: 2}
# Shared memory of a warp's stage: in bulk_copies.cu 8 rows of 256 inputs, padded by 64 bytes; in row_copies.cu of 128.
_BULK_STAGE_BYTES, _COPY_STAGE_BYTES = 8 * (2 * 256 + 64), 8 * 2 * 128
_BARRIER_BYTES = 8
# Threads and stages, the fastest first, for GPUs whose blocks may have less shared memory.
_SHAPES = ((512, 2), (256, 2), (128, 2))
# Of bulk copies for one row of x, whose sums leave room for another stage. It pays from this many groups of 8 outputs
# for each multiprocessor on; 20 of them take 6 % longer with it, 124 a tenth less (H200).
_ONE_ROW_SHAPES, _LEAST_GROUPS = ((512, 3), *_SHAPES), 64
_WEIGHT_TYPES = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True)
class LinearDecode:
    """One product.

    rows: of x, 1 to 16. inputs, outputs: of a weight [outputs, inputs], whose rows are contiguous; inputs is a
        multiple of 8. Addresses of x and the weights are multiples of 16 bytes.
    dtype: of x, weights, bias and residual, float16 or bfloat16. out_dtype: of y.
    activation: "relu2" squares what is positive; "silu_gate" takes a second weight: silu(x · Wᵀ) * (x · Uᵀ).
    bias, residual: added before and after the activation.
    norm_epsilon: x is first normalised by its root mean square over the inputs and multiplied by norm_weight; None:
        it is not. Up to 8 rows; bfloat16 only, as the product with the weight comes first.
    x_stride, residual_stride, y_stride: elements from a row to the next, None where the rows touch.
    tiles: of weights of 4 or 8 bits, which come as tiles and as factors [outputs] in float32.

    The weights are constant: the kernel may read them before earlier kernels of the stream have finished.
    """

    rows: int
    inputs: int
    outputs: int
    dtype: DType
    out_dtype: DType
    activation: Activation = "none"
    bias: bool = False
    residual: bool = False
    norm_epsilon: float | None = None
    x_stride: int | None = None
    residual_stride: int | None = None
    y_stride: int | None = None
    tiles: WeightFormat | None = None

    def __post_init__(self) -> None:
        _need(1 <= self.rows <= LARGEST_ROWS, f"1 to {LARGEST_ROWS} rows", f"{self.rows} rows; use a matrix product")
        _need(self.dtype in _WEIGHT_TYPES, "float16 or bfloat16", f"{self.dtype.value}; convert the weights")
        _need(self.out_dtype in CUDA_TYPES, f"an output of {', '.join(CUDA_TYPES)}", f"{self.out_dtype.value}")
        aligned = self.inputs % _ACCESS == 0 and (self.x_stride or 0) % _ACCESS == 0
        found = f"{self.inputs} inputs and x rows {self.x_stride or self.inputs} apart; pad them"
        _need(aligned and self.inputs > 0, f"inputs and row strides in multiples of {_ACCESS}", found)
        _need(not (self.bias and self.activation == "silu_gate"), "no bias in the gated form", "one; add it apart")
        fused_rows = self.norm_epsilon is not None and self.rows > LARGEST_NORM_ROWS
        _need(not fused_rows, f"a fused norm of 1 to {LARGEST_NORM_ROWS} rows", f"{self.rows}; use rms_norm")
        fused_half = self.norm_epsilon is not None and self.dtype is not DType.BFLOAT16
        _need(not fused_half, "a fused norm in bfloat16", f"{self.dtype.value}; use rms_norm, which cannot overflow")
        if self.tiles is not None:
            self.tiles.tile_inputs(self.inputs)
            _need(self.tiles.dtype is self.dtype, f"tiles for {self.dtype.value}", self.tiles.dtype.value)


def plan(problem: LinearDecode, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``; its inputs are ``INPUTS``, its only output is y."""
    source, threads, shared_bytes = _source(problem, device)
    params = struct_type(source.file, "LinearDecode")()
    params.x_stride = problem.inputs if problem.x_stride is None else problem.x_stride
    params.weight_stride = problem.inputs
    params.residual_stride = problem.outputs if problem.residual_stride is None else problem.residual_stride
    params.y_stride = problem.outputs if problem.y_stride is None else problem.y_stride
    params.rows, params.inputs, params.outputs = problem.rows, problem.inputs, problem.outputs
    params.epsilon = problem.norm_epsilon or 0.0
    blocks = min(device.multiprocessors, -(-problem.outputs // 8))
    launch = KernelLaunch(
        source,
        (blocks, 1, 1),
        (threads, 1, 1),
        params,
        _pointers(problem),
        shared_bytes=shared_bytes,
        overlap=device.is_hopper_or_later,
    )
    return CallPlan((launch,), name=source.label)


def sources() -> Iterator[KernelSource]:
    """Every activation, with and without the norm, up to 8 and up to 16 rows: for an H200 and for an Orin."""
    for device in (DeviceTraits((9, 0), 132, 232448, 60 << 20), DeviceTraits((8, 7), 16, 166912, 4 << 20)):
        for activation in ACTIVATIONS:
            for rows in (1, LARGEST_NORM_ROWS, LARGEST_ROWS):
                for dtype in _WEIGHT_TYPES:
                    yield _source(_example(rows, dtype, activation), device)[0]
            for rows in (1, LARGEST_NORM_ROWS):
                yield _source(_example(rows, DType.BFLOAT16, activation, 1e-5), device)[0]
        for rows in (1, LARGEST_NORM_ROWS, LARGEST_ROWS):
            yield _source(_example(rows, DType.BFLOAT16, out_dtype=DType.FLOAT32), device)[0]
        for out_dtype in (DType.BFLOAT16, DType.FLOAT32):
            head = replace(_example(1, DType.BFLOAT16, out_dtype=out_dtype), outputs=1 << 17)
            yield _source(head, device)[0]
        for tiles in formats():
            yield _source(replace(_example(LARGEST_NORM_ROWS, tiles.dtype), tiles=tiles), device)[0]
        yield _source(replace(_example(LARGEST_ROWS, DType.BFLOAT16), tiles=next(formats())), device)[0]
        for activation in ACTIVATIONS:
            problem = _example(LARGEST_NORM_ROWS, DType.BFLOAT16, activation, 1e-5)
            yield _source(replace(problem, tiles=next(formats())), device)[0]


def _example(
    rows: int,
    dtype: DType,
    activation: Activation = "none",
    epsilon: float | None = None,
    out_dtype: DType | None = None,
) -> LinearDecode:
    return LinearDecode(rows, 4096, 4096, dtype, out_dtype or dtype, activation, norm_epsilon=epsilon)


def _source(problem: LinearDecode, device: DeviceTraits) -> tuple[KernelSource, int, int]:
    """The variant, its threads, and the shared memory of its blocks."""
    bulk = device.is_hopper_or_later
    norm = problem.norm_epsilon is not None
    defines: dict[str, object] = {
        "DATA_T": problem.dtype,
        "OUT_T": problem.out_dtype,
        "ROW_BLOCKS": 1 if problem.rows <= 8 else 2,
        "SUM_ROWS": _sum_rows(problem, bulk),
        "NORM": int(norm),
        "GATED": int(problem.activation == "silu_gate"),
        "RELU2": int(problem.activation == "relu2"),
    }
    groups, file = _GROUPS, BULK_FILE if bulk else COPY_FILE
    if problem.tiles is not None:
        groups, file = _BULK_TILE_GROUPS[problem.tiles.bits] if bulk else _GROUPS, TILE_FILE
        defines |= problem.tiles.defines(problem.inputs)
    many = problem.outputs >= 8 * _LEAST_GROUPS * device.multiprocessors
    sizes = _ONE_ROW_SHAPES if many and _sum_rows(problem, bulk) == 1 else _SHAPES
    shapes = [(*shape, _shared_bytes(problem, bulk, groups, *shape)) for shape in sizes]
    threads, stages, shared_bytes = next((shape for shape in shapes if shape[2] <= device.shared_bytes), shapes[-1])
    defines |= {"GROUPS": groups, "STAGES": stages, "THREADS": threads}
    if file == TILE_FILE:
        defines |= {"BULK_COPIES": int(bulk), "SHARED_BYTES": shared_bytes}
    # Not hot: on sm_120, whose blocks are smaller when it is run there, 512 threads with a norm spill a few bytes.
    # Everywhere, tiles with 16 rows of x do.
    hot = not (bulk and norm) and (problem.tiles is None or problem.rows <= LARGEST_NORM_ROWS)
    return KernelSource.of(file, "linear_decode", defines, hot), threads, shared_bytes


def _sum_rows(problem: LinearDecode, bulk: bool) -> int:
    """Rows whose sums have room in shared memory."""
    if bulk and problem.tiles is None and problem.rows == 1:
        return 1
    return 8 if problem.rows <= 8 else 16


def _shared_bytes(problem: LinearDecode, bulk: bool, groups: int, threads: int, stages: int) -> int:
    """The size of the kernel's struct Shared."""
    warps, rows = threads // 32, 8 if problem.rows <= 8 else 16
    products, squares = warps * groups * _sum_rows(problem, bulk) * TILE_ROWS * 4, warps * rows * 4
    barriers = (stages + 1) * _BARRIER_BYTES  # of a ring
    if problem.tiles is not None:
        ring = stages * groups * problem.tiles.tile_bytes(problem.inputs) + -(-barriers // 16) * 16
    else:
        ring = stages * _BULK_STAGE_BYTES + barriers if bulk else stages * _COPY_STAGE_BYTES
    return warps * ring + 2 * products + squares + 4 * _BARRIER_BYTES


def _pointers(problem: LinearDecode) -> dict[str, PointerSource]:
    present = {
        "x": True,
        "weight": True,
        "up_weight": problem.activation == "silu_gate",
        "bias": problem.bias,
        "residual": problem.residual,
        "norm_weight": problem.norm_epsilon is not None,
        "factors": problem.tiles is not None,
        "up_factors": problem.tiles is not None and problem.activation == "silu_gate",
    }
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(INPUTS) if present[name]}
    return {**pointers, "y": PointerSource(Memory.OUTPUT, 0)}


def _need(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UnsupportedError(f"linear_decode: expected {expected}, found {found}")
