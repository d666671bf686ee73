"""``routed_experts`` for few tokens, at the speed of reading the chosen experts' weights once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS

UP_FILE, DOWN_FILE = "routed_experts/decode_up.cu", "routed_experts/decode_down.cu"
# Inputs of a launch in this order; the only output is y.
INPUTS = ("x", "expert_ids", "expert_weights", "up_weight", "down_weight")
# Behind them, where the experts have biases.
BIASES = ("up_bias", "down_bias")
# Beyond, a product for each expert is faster than products for each token.
LARGEST_ROUTES = 128
_THREADS, _WARPS = 256, 8
_TOKENS_A_WARP = 32
_ACCESS_BYTES = 16
# Routes that a warp computes at a time where several may share an expert.
_SHARED_ROUTES = 4


@dataclass(frozen=True)
class ExpertsDecode:
    """One call of the operator ``routed_experts``, whose attributes are ``activation``, ``gated``, ``alpha``, ``limit``
    and ``offset``.

    tokens, top_k: of expert_ids and expert_weights [tokens, top_k], int32 and float32; at most 128 routes in all.
    hidden, intermediate: of down_weight [experts, hidden, intermediate]; accesses of 16 bytes divide both.
    dtype: of x, the weights, the biases (if ``biased``) and y. x_stride: elements from a row of x to the next; other
    tensors are contiguous. Addresses are multiples of 16 bytes. Everything between x and y is computed and kept in
    float32.
    """

    tokens: int
    top_k: int
    hidden: int
    intermediate: int
    dtype: DType
    activation: str
    gated: bool
    x_stride: int
    alpha: float = 1.0
    limit: float = math.inf
    offset: float = 0.0
    biased: bool = False

    def __post_init__(self) -> None:
        routes = self.tokens * self.top_k
        found = f"{routes}; run expert by expert"
        _need(1 <= routes <= LARGEST_ROUTES, f"1 to {LARGEST_ROUTES} tokens times top_k", found)
        _need(self.dtype in CUDA_TYPES, f"one of the types {', '.join(CUDA_TYPES)}", f"{self.dtype.value}; convert")
        known = ", ".join(EXPERT_ACTIVATIONS)
        _need(self.activation in EXPERT_ACTIVATIONS, f"one of the activations {known}", f"{self.activation}; use one")
        sizes, vector = (self.hidden, self.intermediate, self.x_stride), _ACCESS_BYTES // self.dtype.itemsize
        found = f"{', '.join(map(str, sizes))}; pad them"
        _need(all(size % vector == 0 for size in sizes), f"sizes and x's stride in multiples of {vector}", found)

    @property
    def routes(self) -> int:
        return self.tokens * self.top_k


def plan(problem: ExpertsDecode, device: DeviceTraits) -> CallPlan:
    """The two launches that run ``problem``."""
    params = struct_type(UP_FILE, "RoutedExperts")()
    params.x_stride, params.tokens, params.top_k = problem.x_stride, problem.tokens, problem.top_k
    params.hidden, params.intermediate = problem.hidden, problem.intermediate
    set_activation(params, problem)
    names = (*INPUTS, *(BIASES if problem.biased else ()))
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(names)}
    pointers |= {"inner": PointerSource(Memory.WORKSPACE), "y": PointerSource(Memory.OUTPUT, 0)}
    grids = (
        (-(-problem.intermediate // _WARPS), problem.routes, 1),
        (-(-problem.hidden // _WARPS), -(-problem.tokens // _TOKENS_A_WARP), 1),
    )
    overlap = device.is_hopper_or_later
    up, down = (
        KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, overlap=overlap)
        for source, grid in zip(_sources(problem), grids, strict=True)
    )
    return CallPlan((up, down), workspace_bytes=4 * problem.routes * problem.intermediate, name=up.source.label)


def set_activation(params: Any, problem: Any) -> None:
    """Fill the struct ExpertActivation of ``params``."""
    for name in ("alpha", "limit", "offset"):
        setattr(params.activation, name, getattr(problem, name))


def sources() -> Iterator[KernelSource]:
    """Every type for one token and for several, and every activation, gated or not."""
    for dtype in CUDA_TYPES:
        for tokens in (1, 8):
            yield from _sources(_example(tokens, dtype, "silu", True))
    for activation in EXPERT_ACTIVATIONS:
        for gated in (False, True):
            yield _sources(_example(1, DType.BFLOAT16, activation, gated))[0]


def _example(tokens: int, dtype: DType, activation: str, gated: bool) -> ExpertsDecode:
    return ExpertsDecode(tokens, 2, 2048, 512, dtype, activation, gated, 2048)


def _sources(problem: ExpertsDecode) -> tuple[KernelSource, KernelSource]:
    defines = {
        "DATA_T": problem.dtype,
        "GATED": problem.gated,
        "ACTIVATION": EXPERT_ACTIVATIONS.index(problem.activation),
        "ROUTES": 1 if problem.tokens == 1 else _SHARED_ROUTES,
        "THREADS": _THREADS,
    }
    down = KernelSource.of(DOWN_FILE, "routed_experts_down", {"DATA_T": problem.dtype, "THREADS": _THREADS})
    return KernelSource.of(UP_FILE, "routed_experts_up", defines), down


def _need(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UnsupportedError(f"routed_experts: expected {expected}, found {found}")
