"""Cases of matrix products in decoding, compared with torch in the same run.

``linear_decode`` with the weights of a 2.65 B hybrid model in bfloat16, and ``routed_experts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels.case import COPY_GBPS, KernelCase
from benchmarks.kernels.peers import Peer
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import TensorCall, planned_traits, poisoned, worst_error
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused import linear_decode, routed_experts
from hybridge.trt_plugins.reference.routed_experts import routed_experts as reference

TOLERANCE = 3e-3
LINEAR_PEER = "torch F.linear"
# Share of read bandwidth (4,533 GB/s on the card of COPY_GBPS) that is the goal for products of the larger weights.
READ_SHARE = 0.92 * 4533.0 / COPY_GBPS
LARGE_BYTES = 60_000_000
_HIDDEN = 4096
# Name, outputs, inputs, how often in the model.
LINEAR_SHAPES = (
    ("in_proj", 18560, _HIDDEN, 6),
    ("out_proj", _HIDDEN, 8192, 6),
    ("up", 21504, _HIDDEN, 5),
    ("down", _HIDDEN, 21504, 5),
    ("qkv", 6144, _HIDDEN, 1),
    ("o", _HIDDEN, _HIDDEN, 1),
    ("lm_head", 131072, _HIDDEN, 1),
)
LinearShapes = tuple[tuple[int, int, int], ...]
EXPERTS_PEER = "torch, gathered weights"
# Name, experts, top_k, hidden, intermediate: widths of Qwen3-Next-80B-A3B with 8 and of Qwen3-30B-A3B with all experts.
EXPERTS_SHAPES = (("8 experts", 8, 2, 2048, 512), ("128 experts", 128, 8, 2048, 768))


def linear_cases() -> Iterator[KernelCase]:
    """Each shape, and all products of one decode step in order, for 1 and 8 rows."""
    whole = tuple(shape[1:] for shape in LINEAR_SHAPES)
    for rows in (1, 8):
        for name, outputs, inputs, _ in LINEAR_SHAPES:
            yield _linear_case(f"{name} {inputs}x{outputs} m{rows}", rows, ((outputs, inputs, 1),))
        yield _linear_case(f"all of a step m{rows}", rows, whole)


def _linear_case(name: str, rows: int, shapes: LinearShapes) -> KernelCase:
    size = sum(2 * count * (outputs * inputs + rows * (outputs + inputs)) for outputs, inputs, count in shapes)
    return KernelCase(
        name,
        size,
        TOLERANCE,
        partial(_prepared_linear, rows, shapes),
        at_least=1.0,
        bandwidth_share=READ_SHARE if size >= LARGE_BYTES else None,
        peers=lambda: {LINEAR_PEER: Peer(partial(_linear_peer, rows, shapes))},
    )


def _pairs(rows: int, shapes: LinearShapes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and weight of each product."""
    return [
        (_scaled(rows, inputs), _scaled(outputs, inputs, scale=inputs**-0.5))
        for outputs, inputs, count in shapes
        for _ in range(count)
    ]


def _linear_peer(rows: int, shapes: LinearShapes) -> Prepared:
    """torch's products."""
    pairs = _pairs(rows, shapes)

    def run() -> list[torch.Tensor]:
        return [F.linear(x, weight) for x, weight in pairs]

    return Prepared(run, lambda: worst_error(run(), (x.double() @ weight.double().T for x, weight in pairs)))


def _prepared_linear(rows: int, shapes: LinearShapes) -> Prepared:
    device, pairs, calls = KernelDevice.current(), _pairs(rows, shapes), []
    outputs = [poisoned(rows, weight.shape[0]) for _, weight in pairs]
    for (x, weight), y in zip(pairs, outputs, strict=True):
        problem = linear_decode.LinearDecode(rows, x.shape[1], weight.shape[0], DType.BFLOAT16, DType.BFLOAT16)
        plan = linear_decode.plan(problem, planned_traits())
        calls.append(TensorCall(device, plan, [x, weight, None, None, None, None], [y]))

    def run() -> None:
        for call in calls:
            call()

    return Prepared(run, lambda: worst_error(outputs, (x.double() @ weight.double().T for x, weight in pairs)))


def experts_cases() -> Iterator[KernelCase]:
    """One token and eight of each shape; bytes are those of the experts that are chosen."""
    for name, experts, top_k, hidden, intermediate in EXPERTS_SHAPES:
        for tokens in (1, 8):
            chosen = len(expert_choices(tokens, experts, top_k).unique())
            size = 2 * (3 * chosen * hidden * intermediate + 2 * tokens * hidden)
            sizes = (tokens, experts, top_k, hidden, intermediate)
            yield KernelCase(
                f"{name}, top {top_k}, b{tokens}",
                size,
                TOLERANCE,
                partial(prepared_experts, *sizes),
                at_least=1.0,
                peers=partial(_experts_peers, *sizes),
            )


def expert_choices(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """The experts [tokens, top_k] of each token, in host memory."""
    preference = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
    return preference.argsort(-1)[:, :top_k].int()


def _experts_inputs(tokens: int, experts: int, top_k: int, hidden: int, intermediate: int) -> list[torch.Tensor]:
    """x, expert ids and their weights, up (gate and up) and down projections."""
    return [
        _scaled(tokens, hidden),
        expert_choices(tokens, experts, top_k).cuda(),
        torch.rand(tokens, top_k, device="cuda"),
        _scaled(experts, 2 * intermediate, hidden, scale=hidden**-0.5),
        _scaled(experts, hidden, intermediate, scale=intermediate**-0.5),
    ]


def prepared_experts(*sizes: int) -> Prepared:
    """The call for tokens, experts, top_k, hidden, intermediate, with weights in bfloat16."""
    tokens, _, top_k, hidden, intermediate = sizes
    inputs, y = _experts_inputs(*sizes), poisoned(tokens, hidden)
    problem = routed_experts.ExpertsDecode(tokens, top_k, hidden, intermediate, DType.BFLOAT16, "silu", True, hidden)
    device = KernelDevice.current()

    call = TensorCall(device, routed_experts.plan(problem, device.traits), inputs, [y])
    return Prepared(call, partial(_experts_error, inputs, y))


def _experts_error(inputs: list[torch.Tensor], y: torch.Tensor) -> float:
    x, ids, weights, up, down = inputs
    matrices = up.double(), down.double()
    return worst_error([y], [reference(x.double(), ids, weights.double(), *matrices, None, None, "silu", 1)])


def _experts_peers(*sizes: int) -> Mapping[str, Peer]:
    return {EXPERTS_PEER: Peer(partial(_experts_peer, *sizes))}


def _experts_peer(*sizes: int) -> Prepared:
    """torch's products of copies of the chosen experts."""
    inputs = _experts_inputs(*sizes)
    run = partial(_gathered, *inputs)
    return Prepared(run, lambda: _experts_error(inputs, run()))


def _gathered(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    routes = ids.reshape(-1)
    rows = x.repeat_interleave(ids.shape[1], 0, output_size=routes.shape[0])[:, :, None]
    gate, rest = torch.bmm(up.index_select(0, routes), rows).squeeze(-1).chunk(2, -1)
    results = torch.bmm(down.index_select(0, routes), (F.silu(gate) * rest)[:, :, None])
    return (results.view(*ids.shape, -1) * weights[..., None]).sum(1)


def _scaled(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Random numbers in bfloat16, made in that type: the float32 copy of a large weight would not fit beside it."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale
