"""``routed_experts`` for few tokens, with weights of 4 or 8 bits in tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.fused.routed_experts import LARGEST_ROUTES, set_activation
from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS, WeightFormat, formats
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS

UP_FILE, DOWN_FILE = "routed_experts/tiled_up.cu", "routed_experts/tiled_down.cu"


class Half(Enum):
    """Which of the two products run. UP stores its result [tokens * top_k, intermediate], which DOWN reads."""

    BOTH = "both"
    UP = "up"
    DOWN = "down"


# Inputs of a launch in this order; the only output is y, of UP inner.
INPUTS = {
    Half.BOTH: ("x", "expert_ids", "expert_weights", "up_tiles", "up_factors", "down_tiles", "down_factors"),
    Half.UP: ("x", "expert_ids", "up_tiles", "up_factors"),
    Half.DOWN: ("inner", "expert_ids", "expert_weights", "down_tiles", "down_factors"),
}
# Behind them, where the experts have biases.
BIASES = {Half.BOTH: ("up_bias", "down_bias"), Half.UP: ("up_bias",), Half.DOWN: ("down_bias",)}
_THREADS = 512
_OUTPUTS = 2 * TILE_ROWS  # of a block


@dataclass(frozen=True)
class TiledExperts:
    """One call of the operator ``routed_experts``, with its attributes; ``biased``: the experts have biases.

    tokens, top_k: of expert_ids and expert_weights [tokens, top_k], int32 and float32; at most 128 routes in all.
    up, down: how the weights [experts * (gate and up, or up) * intermediate, hidden] and [experts * hidden,
    intermediate] are stored, for the type of x and y. intermediate and hidden are multiples of 8; x_stride: elements
    from a row of x to the next. Addresses of x and tiles are multiples of 16 bytes.
    """

    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    up: WeightFormat
    down: WeightFormat
    activation: str
    gated: bool
    x_stride: int
    half: Half = Half.BOTH
    alpha: float = 1.0
    limit: float = math.inf
    offset: float = 0.0
    biased: bool = False

    def __post_init__(self) -> None:
        routes = self.tokens * self.top_k
        _need(1 <= routes <= LARGEST_ROUTES, f"1 to {LARGEST_ROUTES} tokens times top_k", f"{routes}; use matrices")
        known = ", ".join(EXPERT_ACTIVATIONS)
        _need(self.activation in EXPERT_ACTIVATIONS, f"one of the activations {known}", f"{self.activation}; use one")
        _need(self.up.dtype is self.down.dtype, "weights for one type", f"{self.up.dtype.value} and {self.down.dtype}")
        sizes = (self.hidden, self.intermediate, self.x_stride)
        found = f"{', '.join(map(str, sizes))}; pad them"
        _need(all(size % TILE_ROWS == 0 for size in sizes), f"sizes and x's stride in multiples of {TILE_ROWS}", found)
        self.up.tile_inputs(self.hidden)
        self.down.tile_inputs(self.intermediate)

    @property
    def up_rows(self) -> int:
        """Rows of the up weights of all experts."""
        return self.experts * self.intermediate * (2 if self.gated else 1)


def plan(problem: TiledExperts, device: DeviceTraits) -> CallPlan:
    """The launches that run ``problem``."""
    params = struct_type(UP_FILE, "TiledExperts")()
    for name in ("x_stride", "tokens", "top_k", "experts", "hidden", "intermediate"):
        setattr(params, name, getattr(problem, name))
    half, result = problem.half, PointerSource(Memory.OUTPUT, 0)
    set_activation(params, problem)
    names = (*INPUTS[half], *(BIASES[half] if problem.biased else ()))
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(names)}
    pointers |= {"inner": result} if half is Half.UP else {"y": result}
    if half is Half.BOTH:
        pointers["inner"] = PointerSource(Memory.WORKSPACE)
    routes = problem.tokens * problem.top_k
    grids = (-(-problem.intermediate // _OUTPUTS), routes, 1), (-(-problem.hidden // _OUTPUTS), problem.tokens, 1)
    launches = tuple(
        KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, overlap=device.is_hopper_or_later)
        for own, source, grid in zip((Half.UP, Half.DOWN), _sources(problem), grids, strict=True)
        if half in (own, Half.BOTH)
    )
    nbytes = problem.up.dtype.itemsize * routes * problem.intermediate if half is Half.BOTH else 0
    return CallPlan(launches, workspace_bytes=nbytes, name=launches[0].source.label)


def sources() -> Iterator[KernelSource]:
    """The kernels of every format, and of every activation, gated or not."""
    for form in formats():
        yield from _sources(_example(form, "silu", True))
    for activation in EXPERT_ACTIVATIONS:
        for gated in (False, True):
            yield _sources(_example(next(formats()), activation, gated))[0]


def _example(form: WeightFormat, activation: str, gated: bool) -> TiledExperts:
    return TiledExperts(1, 2, 8, 2048, 512, form, form, activation, gated, 2048)


def _sources(problem: TiledExperts) -> tuple[KernelSource, KernelSource]:
    # Defines of a product of few rows without norm, gate or activation.
    plain = {"OUT_T": problem.up.dtype, "ROW_BLOCKS": 1, "SUM_ROWS": 8, "NORM": 0, "GATED": 0, "RELU2": 0}
    plain |= {"GROUPS": 2, "THREADS": _THREADS}
    activation = EXPERT_ACTIVATIONS.index(problem.activation)
    up = problem.up.defines(problem.hidden) | {"EXPERT_GATED": int(problem.gated), "ACTIVATION": activation}
    down = problem.down.defines(problem.intermediate)
    return (
        KernelSource.of(UP_FILE, "tiled_experts_up", plain | up),
        KernelSource.of(DOWN_FILE, "tiled_experts_down", plain | down),
    )


def _need(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UnsupportedError(f"tiled_experts: expected {expected}, found {found}")
