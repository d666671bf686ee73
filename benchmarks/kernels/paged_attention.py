"""Cases of ``paged_attention``: 32 query heads, 8 KV heads of 128, blocks of 16 tokens in random order.

Pools are bfloat16, compared with peers, or e4m3 with a scale for every token and head. torch's attention, in the same
run, reads contiguous tensors of the same sizes.
Latents are those of multi-head latent attention: one KV head of 576 for 32 query heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import flashinfer
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import TensorCall, error_of_parts, int32, normal, operator_call
from benchmarks.kernels.timing import FOOTPRINT_BYTES
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_prefill import plan_prefill
from hybridge.trt_plugins.reference.paged_attention import paged_attention, paged_attention_fp8

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
LATENT_DIM = 576
TOLERANCE = 3e-3  # y and the weights are bfloat16
CONTEXTS = {"1k": 1024, "8k": 8192, "32k": 32768}
LATENT_CONTEXTS = ("1k", "8k")
# Goals against the fastest kernel over blocks; the rest must not be slower.
AT_LEAST = {"1k b1": 1.3, "1k b8": 1.3, "8k b1": 1.3}
# Over contiguous tensors, in prompts and in steps of one token per row.
SDPA = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}
CONTIGUOUS = {"flash, contiguous": SDPBackend.FLASH_ATTENTION, "cuDNN, contiguous": SDPBackend.CUDNN_ATTENTION}
# From 8k b8 up: our time over the fastest over contiguous tensors, at most.
OVER_CONTIGUOUS = 1.05
LARGE = 8 * 8192
PREFILL_AT_LEAST = 1.0
# From the query, the pool and the block table: what enqueues a call and returns its output.
PeerCall = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Callable[[], torch.Tensor]]
# What the float64 reference holds in memory at once: rows at both ends of a batch, tokens at both ends of a row.
_CHECKED_ROWS, _CHECKED_TOKENS = 4, 128


@dataclass(frozen=True)
class Shape:
    """rows of ``new`` tokens on a cache of ``past``."""

    rows: int
    new: int
    past: int = 0
    kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM

    @property
    def total(self) -> int:
        """Tokens of a row."""
        return self.new + self.past

    @property
    def parts(self) -> int:
        """Of a pool: latents are keys and values at once."""
        return 1 if self.head_dim == LATENT_DIM else 2

    def nbytes(self, fp8: bool = False) -> int:
        """Queries, keys and values once, outputs once."""
        kv_row = self.head_dim + 4 if fp8 else 2 * self.head_dim
        return self.rows * (4 * self.new * HEADS * self.head_dim + self.parts * self.total * self.kv_heads * kv_row)


PREFILLS = {
    "b1 L4096": Shape(1, 4096),
    "b8 L512": Shape(8, 512),
    "b1 L16384": Shape(1, 16384),
    "b1 L512 on 8192": Shape(1, 512, 8192),
}
FP8_PREFILLS = ("b1 L4096", "b8 L512", "b1 L512 on 8192")


def decode_cases() -> Iterator[KernelCase]:
    """Contexts of 1,024 to 32,768 tokens, 1 to 64 rows."""
    for name, context in CONTEXTS.items():
        for rows in (1, 8, 64):
            case, shape = f"{name} b{rows}", Shape(rows, 1, context - 1)
            yield KernelCase(
                case,
                shape.nbytes(),
                TOLERANCE,
                partial(_prepared_decode, shape),
                partial(_decode_goal, case, rows * context >= LARGE),
                peers=partial(_decode_peers, shape),
            )
            prepare = partial(_prepared_decode, shape, fp8=True)
            yield KernelCase(f"e4m3 {case}", shape.nbytes(fp8=True), TOLERANCE, prepare)
            if name in LATENT_CONTEXTS:
                latents = Shape(rows, 1, context - 1, 1, LATENT_DIM)
                prepare = partial(_prepared_decode, latents)
                yield KernelCase(f"latents {case}", latents.nbytes(), TOLERANCE, prepare)


def _decode_goal(case: str, large: bool, peers: Mapping[str, float]) -> float:
    """The goal for the time of the fastest peer, over blocks or contiguous, over ours."""
    contiguous = [us for name, us in peers.items() if name in CONTIGUOUS]
    paged = [us for name, us in peers.items() if name not in CONTIGUOUS]
    limits = [us / AT_LEAST.get(case, 1.0) for us in paged]
    if large or not paged:
        limits += [OVER_CONTIGUOUS * us for us in contiguous]
    return min(peers.values()) / min(limits)


def prefill_cases() -> Iterator[KernelCase]:
    """One long prompt, eight short ones, a very long one, and a chunk of a prompt that resumes."""
    for name, shape in PREFILLS.items():
        # The mask of queries at the end of longer keys runs on torch's flash kernel, whatever backend is chosen.
        backends = {name: each for name, each in SDPA.items() if not shape.past or name == "SDPA flash"}
        prepare, peers = partial(_prepared_prefill, shape), partial(_sdpa_peers, backends, shape)
        yield KernelCase(name, shape.nbytes(), TOLERANCE, prepare, at_least=PREFILL_AT_LEAST, peers=peers)
    for name in FP8_PREFILLS:
        shape = PREFILLS[name]
        prepare = partial(_prepared_prefill, shape, fp8=True)
        yield KernelCase(f"e4m3 {name}", shape.nbytes(fp8=True), TOLERANCE, prepare)
    shape = Shape(1, 4096, 0, 1, LATENT_DIM)
    prepare = partial(_prepared_prefill, shape)
    yield KernelCase("latents b1 L4096", shape.nbytes(), TOLERANCE, prepare)


def _decode_peers(shape: Shape) -> Mapping[str, Peer]:
    calls: dict[str, PeerCall] = {
        "tensor cores": partial(flashinfer.paged_decode, tensor_cores=True),
        "CUDA cores": partial(flashinfer.paged_decode, tensor_cores=False),
        "XQA": flashinfer.xqa_decode,
    }
    prepares = {name: partial(_prepared_decode, shape, peer=call) for name, call in calls.items()}
    paged = package_peers(flashinfer.DISTRIBUTION, prepares, flashinfer.NAME)
    # One set of this size leaves nothing of its start in the L2, and those of all peers would not fit in memory.
    sets = 1 if shape.nbytes() > FOOTPRINT_BYTES else None
    return {name: replace(peer, sets=sets) for name, peer in {**_sdpa_peers(CONTIGUOUS, shape), **paged}.items()}


def _prepared_decode(shape: Shape, fp8: bool = False, peer: PeerCall | None = None) -> Prepared:
    """Rows of equal length, with blocks in random order. peer: another package's call, None for ours."""
    blocks = shape.rows * shape.total // BLOCK
    table = torch.randperm(blocks, device="cuda", dtype=torch.int32).view(shape.rows, -1)
    pools = _random_pools(shape, blocks, fp8)
    inputs = _inputs(shape, pools, table)
    if peer:
        run = peer(inputs[0], pools[0], table)
    else:
        run = partial(_first, _call(inputs, torch.full_like(inputs[0], float("nan")), fp8))
    ends = {*range(min(shape.rows, _CHECKED_ROWS)), *range(max(0, shape.rows - _CHECKED_ROWS), shape.rows)}

    def error() -> float:
        y = run()
        if not bool(y.isfinite().all()):
            return float("inf")
        return error_of_parts((y[row : row + 1], _reference(inputs, row, row, 1, shape.total)) for row in sorted(ends))

    return Prepared(run, error)


def _prepared_prefill(shape: Shape, fp8: bool = False) -> Prepared:
    """The pool is twice as large as needed."""
    blocks = -(-shape.total // BLOCK)
    pools = _random_pools(shape, 2 * shape.rows * blocks, fp8)
    order = torch.randperm(pools[0].shape[1], device="cuda")[: shape.rows * blocks]
    inputs = _inputs(shape, pools, order.reshape(shape.rows, blocks).int())
    y = torch.full_like(inputs[0], float("nan"))
    begin, count = (shape.rows - 1) * shape.new, min(_CHECKED_TOKENS, shape.new)

    def prefill(call: OpCall, device: DeviceTraits) -> CallPlan:
        paged = PagedCall.of(call)
        return plan(call, device) if paged.is_wide else plan_prefill(paged, device)

    def error() -> float:
        """Over the first and the last tokens of the last row."""
        return error_of_parts(
            (
                y[begin + first : begin + first + count],
                _reference(inputs, -1, begin + first, count, shape.past + first + count),
            )
            for first in (0, shape.new - count)
        )

    return Prepared(_call(inputs, y, fp8, prefill), error)


def _first(call: TensorCall) -> torch.Tensor:
    return call()[0]


def _call(inputs: list[torch.Tensor], y: torch.Tensor, fp8: bool, planner: Any = plan) -> TensorCall:
    spec = PACKED_OPS["paged_attention_fp8" if fp8 else "paged_attention"]
    return operator_call(spec, [*inputs, None], [y], planner=planner)


def _inputs(shape: Shape, pools: list[torch.Tensor], table: torch.Tensor) -> list[torch.Tensor]:
    """query, kv_pool (and kv_scales), block_table, query_start_loc, seq_lens."""
    query = normal(shape.rows * shape.new, HEADS, shape.head_dim, dtype=torch.bfloat16)
    bounds = torch.arange(shape.rows + 1, device="cuda") * shape.new
    return [query, *pools, table, bounds.int(), int32(shape.rows, shape.total)]


def _random_pools(of: Shape, blocks: int, fp8: bool) -> list[torch.Tensor]:
    """Normal numbers in bfloat16; or with deviation 100 in e4m3, and scales for a deviation of about 1."""
    shape = (of.parts, blocks, BLOCK, of.kv_heads, of.head_dim)
    if not fp8:
        return [torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()]
    pool = torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
    for half in pool:
        half.copy_(torch.empty(shape[1:], dtype=torch.bfloat16, device="cuda").normal_().mul_(100).clamp_(-448, 448))
    scales = torch.randint(-8, -5, (2, blocks, KV_HEADS, BLOCK), device="cuda").float().exp2_()
    return [pool.view(torch.uint8), scales]


def _reference(inputs: list[torch.Tensor], row: int, begin: int, count: int, length: int) -> torch.Tensor:
    """In float64: tokens ``begin`` to ``begin + count``, the last of the first ``length`` ones of row ``row``."""
    query, *pools, table, _, _ = inputs
    own, *scales = (pool[:, table[row].long()] for pool in pools)
    order = torch.arange(table.shape[1], dtype=torch.int32, device="cuda")[None]
    bounds = torch.tensor([0, count], dtype=torch.int32, device="cuda")
    arguments: list[Any] = [order, bounds, int32(1, length), None, 0.0, 0, 0.0]
    tokens = query[begin : begin + count].double()
    if scales:
        return paged_attention_fp8(tokens, own, scales[0], *arguments)
    return paged_attention(tokens, own.double(), *arguments)


def _sdpa_peers(backends: Mapping[str, SDPBackend], shape: Shape) -> Mapping[str, Peer]:
    return {name: Peer(partial(_prepared_sdpa, backend, shape), package="torch") for name, backend in backends.items()}


def _prepared_sdpa(backend: SDPBackend, shape: Shape) -> Prepared:
    """torch's attention over contiguous tensors."""
    sizes = [(HEADS, shape.new), (KV_HEADS, shape.total), (KV_HEADS, shape.total)]
    q, k, v = (normal(shape.rows, *size, HEAD_DIM, dtype=torch.bfloat16) for size in sizes)
    prompt = shape.new > 1
    mask = causal_lower_right(shape.new, shape.total) if prompt and shape.past else None

    def run() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=prompt and mask is None, enable_gqa=True
            )

    def error() -> float:
        """Over the first and the last tokens of the first and the last row."""
        y, parts = run(), []
        count = min(_CHECKED_TOKENS, shape.new)
        for row, first in product((0, shape.rows - 1), (0, shape.new - count)):
            tokens, seen = slice(first, first + count), shape.past + first + count
            parts.append((y[row, :, tokens], _attended(q[row, :, tokens], k[row, :, :seen], v[row, :, :seen])))
        return error_of_parts(parts)

    return Prepared(run, error)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last tokens' attention, in float64. q, and the result: [HEADS, count, dim]; k, v: [KV_HEADS, length, dim]."""
    queries = q.double().unflatten(0, (k.shape[0], -1)) * q.shape[-1] ** -0.5
    scores = torch.einsum("hgqd,hkd->hgqk", queries, k.double())
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(k.shape[1] - q.shape[1] + 1)
    return torch.einsum("hgqk,hkd->hgqd", scores.masked_fill(later, -torch.inf).softmax(-1), v.double()).flatten(0, 1)
