"""Weights of 4 or 8 bits as ``linear_decode`` reads them: tiles of 8 rows, codes and scales side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

Code = Literal["int4", "e2m1", "int8", "e4m3"]
TILE_ROWS = 8
UNPACK_FILE = "linear_decode/unpack_tiles.cu"
# Inputs of a launch of ``unpack_plan``, in order.
UNPACK_INPUTS = ("tiles", "factors")
_BITS: dict[Code, int] = {"int4": 4, "e2m1": 4, "int8": 8, "e4m3": 8}
_CUDA_CODES: dict[Code, str] = {"int4": "Int4", "e2m1": "E2m1", "int8": "signed char", "e4m3": "E4m3"}
# Log2 of a number divided by the value of its bits in the 16-bit type (Codes::LOWER in tile.cuh).
_LOWER: dict[tuple[Code, DType], int] = {
    ("e2m1", DType.BFLOAT16): 126,
    ("e2m1", DType.FLOAT16): 14,
    ("e4m3", DType.BFLOAT16): 120,
    ("e4m3", DType.FLOAT16): 8,
}
GROUPS = (0, 16, 32, 64, 128)
# Inputs of a tile: the largest number that gives every warp of a block a tile.
_TILE_INPUTS = (256, 128, 64, 32)
_FULL_BLOCK = 16
_UNPACK_WARPS = 8


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored.

    code: type of one weight. dtype: its type in products, float16 or bfloat16. group: inputs that share a scale; 0: one
    factor per row. byte_scales: scales are e4m3 (NVFP4), else of dtype. zero_points: each group has one.
    """

    code: Code
    dtype: DType
    group: int = 0
    byte_scales: bool = False
    zero_points: bool = False

    def __post_init__(self) -> None:
        _need(self.code in _BITS, f"one of the codes {', '.join(_BITS)}", self.code)
        _need(self.dtype in (DType.FLOAT16, DType.BFLOAT16), "float16 or bfloat16", self.dtype.value)
        _need(self.group in GROUPS, f"groups of {', '.join(map(str, GROUPS[1:]))} inputs or 0", f"{self.group}")
        nvfp4 = self.code == "e2m1" and self.group == 16
        _need(nvfp4 or not self.byte_scales, "e4m3 scales of e2m1 in groups of 16", f"{self.code} in {self.group}")
        shifted = self.code in ("int4", "int8") and self.group > 0
        _need(shifted or not self.zero_points, "zero points of integers in groups", f"{self.code} in {self.group}")

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return _BITS[self.code]

    @property
    def scale_exponent(self) -> int:
        """The power of two that scales of ``dtype`` are multiplied by before they are stored."""
        return 0 if self.byte_scales else _LOWER.get((self.code, self.dtype), 0)

    def tile_inputs(self, inputs: int) -> int:
        """Inputs of a tile of a weight with ``inputs``. UnsupportedError where the groups do not divide them."""
        _need(
            inputs > 0 and inputs % max(self.group, 8) == 0, f"inputs in multiples of {max(self.group, 8)}", f"{inputs}"
        )
        fitting = [size for size in _TILE_INPUTS if size >= self.group]
        return next((size for size in fitting if -(-inputs // size) >= _FULL_BLOCK), fitting[-1])

    def tile_bytes(self, inputs: int) -> int:
        """Codes and scales of a tile."""
        size = self.tile_inputs(inputs)
        scales = TILE_ROWS * (size // self.group) * (1 if self.byte_scales else 2) if self.group else 0
        return TILE_ROWS * size * self.bits // 8 + (2 if self.zero_points else 1) * scales

    def vector(self, inputs: int) -> int:
        """Chunks of 32 inputs whose codes are contiguous for each lane: 16 bytes, or fewer in a smaller tile."""
        return min(16 // self.bits, self.tile_inputs(inputs) // 32)

    def tiles_shape(self, outputs: int, inputs: int) -> tuple[int, int, int]:
        """Tiles along the inputs, tiles along the outputs, bytes of a tile."""
        return -(-inputs // self.tile_inputs(inputs)), -(-outputs // TILE_ROWS), self.tile_bytes(inputs)

    def defines(self, inputs: int) -> dict[str, object]:
        """Macros of tile.cuh for a weight with ``inputs``."""
        return {
            "DATA_T": self.dtype,
            "CODE": _CUDA_CODES[self.code],
            "TILE_INPUTS": self.tile_inputs(inputs),
            "GROUP": self.group,
            "BYTE_SCALES": int(self.byte_scales),
            "ZERO_POINTS": int(self.zero_points),
        }


@dataclass(frozen=True)
class UnpackTiles:
    """A matrix [outputs, inputs] of ``weight.dtype`` from its tiles."""

    weight: WeightFormat
    outputs: int
    inputs: int


def unpack_plan(problem: UnpackTiles) -> CallPlan:
    """The launch that runs ``problem``; its inputs are ``UNPACK_INPUTS``, its only output is the matrix."""
    source = _source(problem.weight, problem.inputs)
    params = struct_type(UNPACK_FILE, "UnpackTiles")()
    params.inputs, params.outputs = problem.inputs, problem.outputs
    slices, groups, _ = problem.weight.tiles_shape(problem.outputs, problem.inputs)
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(UNPACK_INPUTS)}
    launch = KernelLaunch(
        source,
        (-(-groups // _UNPACK_WARPS), slices, 1),
        (32 * _UNPACK_WARPS, 1, 1),
        params,
        {**pointers, "y": PointerSource(Memory.OUTPUT, 0)},
    )
    return CallPlan((launch,), name=source.label)


def formats() -> Iterator[WeightFormat]:
    """One format of each kind, for checks of all."""
    yield WeightFormat("int4", DType.BFLOAT16, 128)
    yield WeightFormat("int4", DType.BFLOAT16, 128, zero_points=True)
    yield WeightFormat("int4", DType.FLOAT16, 16)
    yield WeightFormat("int4", DType.FLOAT16, 32, zero_points=True)
    yield WeightFormat("int8", DType.BFLOAT16)
    yield WeightFormat("int8", DType.FLOAT16, 32)
    yield WeightFormat("e4m3", DType.BFLOAT16, 128)
    yield WeightFormat("e4m3", DType.FLOAT16)
    yield WeightFormat("e2m1", DType.BFLOAT16, 16, byte_scales=True)
    yield WeightFormat("e2m1", DType.FLOAT16, 32)


def sources() -> Iterator[KernelSource]:
    """Unpacking of every kind of format."""
    for weight in formats():
        yield _source(weight, 4096)


def _source(weight: WeightFormat, inputs: int) -> KernelSource:
    return KernelSource.of(UNPACK_FILE, "unpack_tiles", weight.defines(inputs))


def _need(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UnsupportedError(f"weight tiles: expected {expected}, found {found}")
