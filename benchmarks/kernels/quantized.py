"""Matrix products and experts with 4-bit and 8-bit weights, compared with torch or bfloat16 in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.products import (
    EXPERTS_SHAPES,
    LINEAR_SHAPES,
    TOLERANCE,
    LinearShapes,
    expert_choices,
    prepared_experts,
)
from benchmarks.kernels.tensor_call import TensorCall, normal, poisoned, worst_error
from benchmarks.kernels.timing import LEAST_SETS
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused import tiled_experts
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode, plan
from hybridge.trt_plugins.kernels.fused.tiled_experts import TiledExperts
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, WeightFormat, unpack_plan
from hybridge.trt_plugins.reference.routed_experts import routed_experts
from tests.support.weights import random_weight

FORMATS = {
    "int4 128": WeightFormat("int4", DType.BFLOAT16, 128),
    "fp8": WeightFormat("e4m3", DType.BFLOAT16),
    "nvfp4": WeightFormat("e2m1", DType.BFLOAT16, 16, byte_scales=True),
}
# Goals: of copy bandwidth for products of few rows, of the time in bfloat16 for prompts.
COPY_SHARE, PROMPT_TIME = 0.85, 1.15
PROMPT_TOKENS = 4096
INT4_PEER, FP8_PEER, PROMPT_PEER = (
    f"torch {name}" for name in ("_weight_int4pack_mm", "_scaled_mm", "F.linear in bfloat16")
)
EXPERTS_PEER = "routed_experts in bfloat16"


def cases() -> Iterator[KernelCase]:
    """A whole step of the model and some of its shapes in int4; one shape in other formats; a prompt."""
    shapes = {name: (outputs, inputs) for name, outputs, inputs, _ in LINEAR_SHAPES}
    step = tuple(shape[1:] for shape in LINEAR_SHAPES)
    for name in ("in_proj", "down", "lm_head"):
        yield _case("int4 128", name, 1, ((*shapes[name], 1),))
    yield _case("int4 128", "in_proj", 8, ((*shapes["in_proj"], 1),))
    for rows in (1, 8):
        yield _case("int4 128", "all of a step", rows, step)
    for form in ("fp8", "nvfp4"):
        yield _case(form, "in_proj", 1, ((*shapes["in_proj"], 1),))
    outputs, inputs = shapes["in_proj"]
    yield KernelCase(
        f"int4 128 in_proj, prompt of {PROMPT_TOKENS}",
        2 * (outputs * inputs + PROMPT_TOKENS * (outputs + inputs)),
        TOLERANCE,
        partial(_prepared_prompt, FORMATS["int4 128"], outputs, inputs),
        at_least=1 / PROMPT_TIME,
        peers=lambda: {PROMPT_PEER: Peer(partial(_prompt_peer, outputs, inputs), sets=1)},
    )
    for name, *expert_sizes in EXPERTS_SHAPES:
        yield _experts_case(name, 1, *expert_sizes)


def _case(form: str, name: str, rows: int, shapes: LinearShapes) -> KernelCase:
    weight = FORMATS[form]
    size = sum(
        count
        * (outputs * inputs * weight.bits // 8 + _scale_bytes(weight, outputs, inputs) + 2 * rows * (outputs + inputs))
        for outputs, inputs, count in shapes
    )
    peer: Callable[[], Mapping[str, Peer]] = dict
    if form in _PEERS and name == "in_proj":
        peer = partial(_PEERS[form], rows, *shapes[0][:2])
    return KernelCase(
        f"{form} {name} m{rows}",
        size,
        TOLERANCE,
        partial(_prepared, weight, rows, shapes),
        at_least=1.0 if peer is not dict else None,
        bandwidth_share=COPY_SHARE,
        peers=peer,
    )


def _experts_case(name: str, tokens: int, experts: int, top_k: int, hidden: int, intermediate: int) -> KernelCase:
    form = FORMATS["int4 128"]
    chosen = tokens * top_k * 3 * hidden * intermediate
    sizes = (tokens, experts, top_k, hidden, intermediate)
    return KernelCase(
        f"int4 128 {name}, top {top_k}, b{tokens}",
        chosen * form.bits // 8 + chosen // form.group * 2 + 4 * tokens * hidden,
        TOLERANCE,
        partial(_prepared_experts, form, *sizes),
        at_least=1.0,
        # All experts in 16 bits are large.
        peers=lambda: {EXPERTS_PEER: Peer(partial(prepared_experts, *sizes), sets=LEAST_SETS)},
    )


def _prepared_experts(form: WeightFormat, *sizes: int) -> Prepared:
    tokens, experts, top_k, hidden, intermediate = sizes
    problem = TiledExperts(tokens, top_k, experts, hidden, intermediate, form, form, "silu", True, hidden)
    device, y = KernelDevice.current(), poisoned(tokens, hidden)
    x, ids = normal(tokens, hidden, dtype=torch.bfloat16), expert_choices(tokens, experts, top_k).cuda()
    weights = torch.rand(tokens, top_k, device="cuda")
    up = random_weight(form, problem.up_rows, hidden)
    down = random_weight(form, experts * hidden, intermediate)
    inputs = [x, ids, weights, *up.tiles(), *down.tiles()]
    # The weights of the token's experts, in their order.
    first, second = (each.matrix.view(experts, -1, each.matrix.shape[1])[ids[0].long()] for each in (up, down))

    def error() -> float:
        order = torch.arange(top_k, dtype=torch.int32, device="cuda")[None]
        return worst_error(
            [y], [routed_experts(x.double(), order, weights.double(), first, second, None, None, "silu", 1)]
        )

    return Prepared(TensorCall(device, tiled_experts.plan(problem, device.traits), inputs, [y]), error)


def _scale_bytes(weight: WeightFormat, outputs: int, inputs: int) -> int:
    groups = inputs // weight.group * (1 if weight.byte_scales else 2) if weight.group else 0
    return outputs * (groups + 4)


def _prepared(weight: WeightFormat, rows: int, shapes: LinearShapes) -> Prepared:
    device, calls, checks = KernelDevice.current(), [], []
    for outputs, inputs, count in shapes:
        random = random_weight(weight, outputs, inputs)
        for index in range(count):
            x, y = normal(rows, inputs, dtype=torch.bfloat16), poisoned(rows, outputs)
            tiles, factors = random.tiles()
            call = plan(LinearDecode(rows, inputs, outputs, weight.dtype, weight.dtype, tiles=weight), device.traits)
            calls.append(TensorCall(device, call, [x, tiles, None, None, None, None, factors, None], [y]))
            if index == 0:
                checks.append((x, y))

    def run() -> None:
        for call in calls:
            call()

    def error() -> float:
        matrices = (random_weight(weight, outputs, inputs).matrix for outputs, inputs, _ in shapes)
        return worst_error(
            (y for _, y in checks), (x.double() @ m.T for (x, _), m in zip(checks, matrices, strict=True))
        )

    return Prepared(run, error)


def _prepared_prompt(weight: WeightFormat, outputs: int, inputs: int) -> Prepared:
    device, random = KernelDevice.current(), random_weight(weight, outputs, inputs)
    tiles = random.tiles()
    x = normal(PROMPT_TOKENS, inputs, dtype=torch.bfloat16)
    matrix, y = poisoned(outputs, inputs), poisoned(PROMPT_TOKENS, outputs)
    unpack = TensorCall(device, unpack_plan(UnpackTiles(weight, outputs, inputs)), tiles, [matrix])

    def run() -> None:
        unpack()
        torch.mm(x, matrix.t(), out=y)

    return Prepared(run, lambda: worst_error([y], [x.double() @ random_weight(weight, outputs, inputs).matrix.T]))


def _prompt_peer(outputs: int, inputs: int) -> Prepared:
    x, matrix = normal(PROMPT_TOKENS, inputs, dtype=torch.bfloat16), normal(outputs, inputs, dtype=torch.bfloat16)
    run = partial(F.linear, x, matrix)
    return Prepared(run, lambda: worst_error([run()], [x.double() @ matrix.double().T]))


def _int4_peers(rows: int, outputs: int, inputs: int) -> dict[str, Peer]:
    """torch's product, and gemlite's where it is installed, which adds in bfloat16."""
    sizes = (rows, outputs, inputs)
    peers = {INT4_PEER: Peer(partial(_int4_peer, *sizes))}
    return peers | {
        name: replace(peer, tolerance=3e-2)
        for name, peer in package_peers("gemlite", {"A16W4": partial(_gemlite_peer, *sizes)}).items()
    }


def _int4_peer(rows: int, outputs: int, inputs: int) -> Prepared:
    """Two codes a byte, the higher bits first; a scale and what code 8 stands for, by group and output."""
    packed = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device="cuda")
    x, scales = normal(rows, inputs, dtype=torch.bfloat16), normal(inputs // 128, outputs, 2, dtype=torch.bfloat16)
    run = partial(torch._weight_int4pack_mm, x, torch._convert_weight_to_int4pack(packed, 8), 128, scales)

    def error() -> float:
        codes = torch.stack([packed >> 4, packed & 15], -1).view(outputs, inputs // 128, 128)
        scale, middle = scales.double().transpose(0, 1)[..., None].unbind(2)
        matrix = ((codes.double() - 8) * scale + middle).flatten(1)
        return worst_error([run()], [x.double() @ matrix.T])

    return Prepared(run, error)


def _gemlite_peer(rows: int, outputs: int, inputs: int) -> Prepared:
    """Unsigned codes with zero points, 128 inputs a group."""
    from gemlite.helper import A16W4_HQQ_INT

    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device="cuda")
    scales = torch.rand(outputs, inputs // 128, device="cuda").bfloat16() / 100
    x, zeros = normal(rows, inputs, dtype=torch.bfloat16), torch.full_like(scales, 8.0)
    layer = A16W4_HQQ_INT(device="cuda", dtype=torch.bfloat16).from_weights(codes.clone(), scales.clone(), zeros)

    def error() -> float:
        matrix = (codes.double() - 8) * scales.double().repeat_interleave(128, dim=1)
        return worst_error([layer(x)], [x.double() @ matrix.T])

    return Prepared(partial(layer, x), error)


def _fp8_peers(rows: int, outputs: int, inputs: int) -> dict[str, Peer]:
    return {FP8_PEER: Peer(partial(_fp8_peer, rows, outputs, inputs))}


def _fp8_peer(rows: int, outputs: int, inputs: int) -> Prepared:
    one = torch.ones((), device="cuda")
    x, matrix = (normal(count, inputs).to(torch.float8_e4m3fn) for count in (rows, outputs))
    run = partial(torch._scaled_mm, x, matrix.t(), one, one, out_dtype=torch.bfloat16)
    return Prepared(run, lambda: worst_error([run()], [x.double() @ matrix.double().T]))


_PEERS: dict[str, Callable[..., Mapping[str, Peer]]] = {"int4 128": _int4_peers, "fp8": _fp8_peers}
