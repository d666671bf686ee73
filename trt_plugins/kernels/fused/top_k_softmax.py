"""``top_k_softmax``: the experts of each token, and their weights, from a router's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "routed_experts/top_k_softmax.cu"
LARGEST_EXPERTS, LARGEST_TOP_K = 1024, 32
_LANES = 32
_THREADS, _WARPS = 128, 4


@dataclass(frozen=True)
class TopKSoftmax:
    """The ``top_k`` largest of logits [tokens, experts] float32, the lower expert first where two are equal.

    Outputs: weights [tokens, top_k] float32, exp(logit) over its sum, and ids [tokens, top_k] int32.
    normalized: the sum is over the chosen experts, not over all.
    """

    tokens: int
    experts: int
    top_k: int
    normalized: bool

    def __post_init__(self) -> None:
        fits = 1 <= self.top_k <= min(LARGEST_TOP_K, self.experts) and self.experts <= LARGEST_EXPERTS
        if not (fits and self.tokens > 0):
            raise UnsupportedError(
                f"top_k_softmax: expected a choice of 1 to {LARGEST_TOP_K} among at most {LARGEST_EXPERTS} experts, "
                f"found {self.top_k} among {self.experts} for {self.tokens} tokens; use a framework's top_k"
            )


def plan(problem: TopKSoftmax, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``: logits in, weights and ids out."""
    source = _source(problem.experts)
    params = struct_type(FILE, "TopKSoftmax")()
    params.tokens, params.experts, params.top_k = problem.tokens, problem.experts, problem.top_k
    params.normalized = int(problem.normalized)
    pointers = {
        "logits": PointerSource(Memory.INPUT, 0),
        "weights": PointerSource(Memory.OUTPUT, 0),
        "ids": PointerSource(Memory.OUTPUT, 1),
    }
    grid = (-(-problem.tokens // _WARPS), 1, 1)
    overlap = device.is_hopper_or_later
    return CallPlan(
        (KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, overlap=overlap),), name=source.label
    )


def sources() -> Iterator[KernelSource]:
    """Few experts and many."""
    for experts in (8, 64, 128, 512, LARGEST_EXPERTS):
        yield _source(experts)


def _source(experts: int) -> KernelSource:
    items = 1 << max(0, -(-experts // _LANES) - 1).bit_length()
    return KernelSource.of(FILE, "top_k_softmax", {"ITEMS": items, "THREADS": _THREADS})
