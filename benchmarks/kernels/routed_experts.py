"""Cases of ``routed_experts`` in decoding, bfloat16, beside the same products in torch in the same run."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.rotation import input_sets
from benchmarks.kernels.tensor_call import TensorCall
from benchmarks.kernels.timing import graph_time
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.routed_experts import ExpertsDecode, plan
from hybridge.trt_plugins.reference.routed_experts import routed_experts as reference

TOLERANCE = 3e-3
PEER = "torch, gathered weights (same run)"
# Name, experts, top_k, hidden, intermediate: widths of Qwen3-Next-80B-A3B with 8 and of Qwen3-30B-A3B with all experts.
SHAPES = (("8 experts", 8, 2, 2048, 512), ("128 experts", 128, 8, 2048, 768))


def cases() -> Iterator[KernelCase]:
    """One token and eight of each shape; bytes are those of the experts that are chosen."""
    for name, experts, top_k, hidden, intermediate in SHAPES:
        for tokens in (1, 8):
            yield _case(f"{name}, top {top_k}, b{tokens}", tokens, experts, top_k, hidden, intermediate)


def _case(name: str, tokens: int, experts: int, top_k: int, hidden: int, intermediate: int) -> KernelCase:
    chosen = len(_choices(tokens, experts, top_k).unique())
    size = 2 * (3 * chosen * hidden * intermediate + 2 * tokens * hidden)
    sizes = (tokens, experts, top_k, hidden, intermediate)
    return KernelCase(
        name,
        size,
        TOLERANCE,
        lambda: _prepared(*sizes),
        at_least=1.0,
        timed_peers=lambda: {PEER: _peer_time(size, *sizes)},
    )


def _choices(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    liking = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
    return liking.argsort(-1)[:, :top_k].int()


def _tensors(tokens: int, experts: int, top_k: int, hidden: int, intermediate: int) -> list[torch.Tensor]:
    def random(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale

    return [
        random(tokens, hidden, scale=1.0),
        _choices(tokens, experts, top_k).cuda(),
        torch.rand(tokens, top_k, device="cuda"),
        random(experts, 2 * intermediate, hidden, scale=hidden**-0.5),
        random(experts, hidden, intermediate, scale=intermediate**-0.5),
    ]


def _prepared(*sizes: int) -> Prepared:
    tokens, _, top_k, hidden, intermediate = sizes
    inputs = _tensors(*sizes)
    y = torch.full((tokens, hidden), float("nan"), device="cuda", dtype=torch.bfloat16)
    problem = ExpertsDecode(tokens, top_k, hidden, intermediate, DType.BFLOAT16, "silu", True, hidden)
    device = KernelDevice.current()

    def error() -> float:
        x, ids, weights, up, down = inputs
        expected = reference(x.double(), ids, weights.double(), up.double(), down.double(), "silu", gated=1)
        return float((y.double() - expected).norm() / expected.norm())

    return Prepared(TensorCall(device, plan(problem, device.traits), inputs, [y]), error)


def _peer_time(size: int, *sizes: int) -> float:
    """Microseconds of torch's products of copies of the chosen experts."""
    sets = [_tensors(*sizes) for _ in range(input_sets(size))]
    return graph_time([lambda inputs=inputs: _gathered(*inputs) for inputs in sets]).median  # type: ignore[misc]


def _gathered(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    routes = ids.reshape(-1)
    rows = x.repeat_interleave(ids.shape[1], 0, output_size=routes.shape[0])[:, :, None]
    gate, rest = torch.bmm(up.index_select(0, routes), rows).squeeze(-1).chunk(2, -1)
    results = torch.bmm(down.index_select(0, routes), (torch.nn.functional.silu(gate) * rest)[:, :, None])
    return (results.view(*ids.shape, -1) * weights[..., None]).sum(1)
