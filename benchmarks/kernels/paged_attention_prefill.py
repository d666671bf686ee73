"""Cases of ``paged_attention`` with many new tokens a row: bfloat16, pages of 16 tokens in random order, and some over
pools of e4m3.

Peers are torch's own attention in the same process: causal, of the same tokens; its keys and values lie in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.paged_attention_decode import random_pools
from benchmarks.kernels.rotation import input_sets
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from benchmarks.kernels.timing import graph_time
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import CallPlan, OpCall
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_prefill import plan_prefill
from hybridge.trt_plugins.reference.paged_attention import paged_attention, paged_attention_fp8

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
TOLERANCE = 3e-3
AT_LEAST = 1 / 1.3
_CHECKED_TOKENS = 128  # at the beginning and at the end of a row: what the float64 reference holds in memory at once
_FLASH = {"SDPA flash": SDPBackend.FLASH_ATTENTION}
_PEERS = {**_FLASH, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Shape:
    """rows of ``new`` tokens on a cache of ``past``."""

    rows: int
    new: int
    past: int = 0

    @property
    def bytes(self) -> int:
        """Queries, keys and values once, outputs once."""
        return 2 * HEAD_DIM * self.rows * (2 * self.new * HEADS + 2 * (self.new + self.past) * KV_HEADS)


SHAPES = {
    "b1 L4096": Shape(1, 4096),
    "b8 L512": Shape(8, 512),
    "b1 L16384": Shape(1, 16384),
    "b1 L512 on 8192": Shape(1, 512, 8192),
}
FP8_SHAPES = ("b1 L4096", "b8 L512", "b1 L512 on 8192")


def cases() -> Iterator[KernelCase]:
    """One long prompt, eight short ones, a very long one, and a chunk of a prompt that resumes."""
    for name, shape in SHAPES.items():
        yield KernelCase(
            name,
            shape.bytes,
            TOLERANCE,
            partial(prepared, shape),
            at_least=AT_LEAST,
            timed_peers=partial(peer_times, shape),
        )
    for name in FP8_SHAPES:
        shape = SHAPES[name]
        nbytes = shape.bytes - 2 * shape.rows * (shape.new + shape.past) * KV_HEADS * (HEAD_DIM - 4)
        yield KernelCase(f"e4m3 {name}", nbytes, TOLERANCE, partial(prepared, shape, fp8=True))


def prepared(shape: Shape, fp8: bool = False) -> Prepared:
    """A call on fresh random tensors, its output full of NaN."""
    inputs = _inputs(shape, fp8)
    y = torch.full(inputs[0].shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    spec = PACKED_OPS["paged_attention_fp8" if fp8 else "paged_attention"]
    device = KernelDevice.current()
    layouts = (*(layout_of(tensor) for tensor in inputs), None)
    call = OpCall(spec, layouts, (layout_of(y),), spec.complete_attributes({}))
    plan = CallPlan(plan_prefill(PagedCall.of(call), device.traits))
    return Prepared(TensorCall(device, plan, [*inputs, None], [y]), partial(_error, shape, inputs, y))


def peer_times(shape: Shape) -> Mapping[str, float]:
    """Microseconds of torch's attention on contiguous tensors; a backend that does not take the call is left out."""
    sets = [_contiguous(shape) for _ in range(input_sets(shape.bytes))]
    mask = causal_lower_right(shape.new, shape.new + shape.past) if shape.past else None
    times = {}
    # The mask of queries at the end of longer keys runs on torch's flash kernel, whatever backend is chosen.
    for name, backend in (_FLASH if shape.past else _PEERS).items():
        with sdpa_kernel(backend):
            calls = [partial(_attend, tensors, mask) for tensors in sets]
            try:
                calls[0]()
            except RuntimeError:
                continue
            times[name] = graph_time(calls).median
    return times


def _attend(tensors: list[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
    q, k, v = tensors
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


def _inputs(shape: Shape, fp8: bool) -> list[torch.Tensor]:
    """query, kv_pool (and kv_scales), block_table, query_start_loc, seq_lens; the pool is twice as large as needed."""
    total, pages = shape.new + shape.past, -(-(shape.new + shape.past) // PAGE)
    query = torch.randn(shape.rows * shape.new, HEADS, HEAD_DIM, device="cuda").to(torch.bfloat16)
    pools = random_pools(2 * shape.rows * pages, fp8)
    order = torch.randperm(pools[0].shape[1], device="cuda")[: shape.rows * pages]
    bounds = torch.arange(shape.rows + 1, device="cuda") * shape.new
    lengths = torch.full((shape.rows,), total, dtype=torch.int32, device="cuda")
    return [query, *pools, order.reshape(shape.rows, pages).int(), bounds.int(), lengths]


def _contiguous(shape: Shape) -> list[torch.Tensor]:
    sizes = [(HEADS, shape.new), (KV_HEADS, shape.new + shape.past), (KV_HEADS, shape.new + shape.past)]
    return [torch.randn(shape.rows, *size, HEAD_DIM, device="cuda").to(torch.bfloat16) for size in sizes]


def _error(shape: Shape, inputs: list[torch.Tensor], y: torch.Tensor) -> float:
    """Relative norm against float64 over the first and the last tokens of the last row."""
    query, *pools, table, _, _ = inputs
    form, own = (paged_attention_fp8, pools) if len(pools) == 2 else (paged_attention, [pools[0].double()])
    begin, count = (shape.rows - 1) * shape.new, min(_CHECKED_TOKENS, shape.new)
    bounds = torch.tensor([0, count], dtype=torch.int32, device="cuda")
    wrong, whole = 0.0, 0.0
    for first in (0, shape.new - count):
        tokens = slice(begin + first, begin + first + count)
        lengths = torch.full((1,), shape.past + first + count, dtype=torch.int32, device="cuda")
        arguments: list[Any] = [query[tokens].double(), *own, table[-1:], bounds, lengths, None, 0.0, 0, 0.0]
        expected = form(*arguments)
        wrong += float((y[tokens].double() - expected).norm() ** 2)
        whole += float(expected.norm() ** 2)
    return (wrong / whole) ** 0.5
