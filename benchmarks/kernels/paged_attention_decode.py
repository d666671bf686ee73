"""Cases of ``paged_attention`` for one token a row: 32 query heads, 8 KV heads of 128, pages of 16 in random order.

Over pools of bfloat16, beside its peers, and of e4m3 with a scale for every token and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.peers import peer_times
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.reference.paged_attention import paged_attention, paged_attention_fp8

GROUP = "paged_attention_decode"
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
TOLERANCE = 3e-3  # y and the weights are bfloat16
CONTEXTS = {"1k": 1024, "8k": 8192, "32k": 32768}
ROWS = (1, 8, 64)
# Wanted ratio to the fastest kernel over pages; the rest must not be slower.
AT_LEAST = {"1k b1": 1.3, "1k b8": 1.3, "8k b1": 1.3}
CONTIGUOUS = "cuDNN, contiguous"
# From 8k b8 up: most of the time that cuDNN takes over keys and values without pages.
OVER_CONTIGUOUS = 1.05
LARGE = 8 * 8192
_CHECKED_ROWS = 4  # what the float64 reference is asked for, at both ends of the batch


def cases() -> Iterator[KernelCase]:
    """Contexts of 1,024 to 32,768 tokens, 1 to 64 rows."""
    for name, context in CONTEXTS.items():
        for rows in ROWS:
            case = f"{name} b{rows}"
            peers = peer_times(GROUP, case)
            yield KernelCase(
                case,
                rows * (2 * context * KV_HEADS + 2 * HEADS) * HEAD_DIM * 2,
                TOLERANCE,
                partial(prepared, rows, context),
                peers,
                _at_least(case, peers, rows * context >= LARGE),
            )
            yield KernelCase(
                f"e4m3 {case}",
                rows * (2 * context * KV_HEADS * (HEAD_DIM + 4) + 2 * HEADS * HEAD_DIM * 2),
                TOLERANCE,
                partial(prepared, rows, context, fp8=True),
            )


def _at_least(case: str, peers: Any, large: bool) -> float | None:
    """The wanted ratio of the fastest peer's time, pages or not, to ours."""
    if not peers:
        return None
    paged = min(us for name, us in peers.items() if name != CONTIGUOUS)
    limit = paged / AT_LEAST.get(case, 1.0)
    if large:
        limit = min(limit, OVER_CONTIGUOUS * peers[CONTIGUOUS])
    return float(min(peers.values())) / limit


def prepared(rows: int, context: int, fp8: bool = False) -> Prepared:
    """Rows of equal length, each page of them anywhere in the pool."""
    inputs = _inputs(rows, context, fp8)
    query = inputs[0]
    outputs = [torch.full_like(query, float("nan"))]
    spec = PACKED_OPS["paged_attention_fp8" if fp8 else "paged_attention"]
    device = KernelDevice.current()
    layouts = [tuple(layout_of(tensor) for tensor in tensors) for tensors in (inputs, outputs)]
    call = OpCall(spec, (*layouts[0], None), layouts[1], spec.complete_attributes({}))
    run = TensorCall(device, plan(call, device.traits), [*inputs, None], outputs)

    def error() -> float:
        picked = sorted({*range(min(rows, _CHECKED_ROWS)), *range(max(0, rows - _CHECKED_ROWS), rows)})
        wrong = whole = 0.0
        for row in picked:
            expected = _reference(query[row : row + 1].double(), inputs, row)
            wrong += float((outputs[0][row].double() - expected).norm() ** 2)
            whole += float(expected.norm() ** 2)
        return (wrong / whole) ** 0.5 if bool(outputs[0].isfinite().all()) else float("inf")

    return Prepared(run, error)


def _inputs(rows: int, context: int, fp8: bool) -> list[torch.Tensor]:
    blocks = rows * context // BLOCK_SIZE
    query = torch.randn(rows, HEADS, HEAD_DIM, device="cuda").to(torch.bfloat16)
    table = torch.randperm(blocks, device="cuda", dtype=torch.int32).view(rows, -1)
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    lengths = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    return [query, *random_pools(blocks, fp8), table, starts, lengths]


def random_pools(blocks: int, fp8: bool) -> list[torch.Tensor]:
    """Normal numbers in bfloat16; or with deviation 100 in e4m3, and scales for a deviation of about 1."""
    shape = (2, blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    if not fp8:
        return [torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()]
    pool = torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
    for half in pool:
        half.copy_(torch.empty(shape[1:], dtype=torch.bfloat16, device="cuda").normal_().mul_(100).clamp_(-448, 448))
    scales = torch.randint(-8, -5, (2, blocks, KV_HEADS, BLOCK_SIZE), device="cuda").float().exp2_()
    return [pool.view(torch.uint8), scales]


def _reference(query: torch.Tensor, inputs: list[torch.Tensor], row: int) -> torch.Tensor:
    _, *pools, table, starts, lengths = inputs
    own, *scales = (pool[:, table[row].long()] for pool in pools)
    order = torch.arange(table.shape[1], dtype=torch.int32, device="cuda")[None]
    bounds, length = starts[:2], lengths[:1]
    if scales:
        return paged_attention_fp8(query, own, scales[0], order, bounds, length, None, 0.0, 0, 0.0)[0]
    return paged_attention(query, own.double(), order, bounds, length, None, 0.0, 0, 0.0)[0]
