"""flashinfer: sampling, Mamba2's state update, attention of one token per row over blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.kernels.packages.mamba_ssm import of_heads

DISTRIBUTION, NAME = "flashinfer-python", "flashinfer"
WORKSPACE_BYTES = 128 << 20


def sampled(logits: Tensor, temperature: float, top_p: float, top_k: int, order: str) -> Callable[[], Tensor]:
    """Tokens of logits [rows, vocabulary]. top_k: 0 for all; else order: "top_k_first" or "joint".

    The kernels take probabilities, whose computation by its softmax is part of the time. Seed and offset are fixed: as
    numbers on the host they cost nothing.
    """
    from flashinfer import sampling

    def run() -> Tensor:
        probabilities = sampling.softmax(logits, temperature=temperature)
        if not top_k:
            return sampling.top_p_sampling_from_probs(probabilities, top_p, seed=1, offset=0)
        return sampling.top_k_top_p_sampling_from_probs(
            probabilities, top_k, top_p, filter_apply_order=order, seed=1, offset=0
        )

    return run


def state_update(
    x: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: Tensor, dt_bias: Tensor, state: Tensor, algorithm: str
) -> Callable[[], tuple[Tensor, Tensor]]:
    """y and the state, which is updated in place; shapes as ``mamba_ssm.state_update``. D and dt_bias: like dt."""
    from flashinfer.mamba import selective_state_update

    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    call = of_heads(selective_state_update, x, A, B, C, D, dt, dt_bias, state, out=y, algorithm=algorithm)

    def run() -> tuple[Tensor, Tensor]:
        call()
        return y, state

    return run


def paged_decode(query: Tensor, pools: Tensor, table: Tensor, tensor_cores: bool) -> Callable[[], Tensor]:
    """Attention of one token per row over all tokens of the row's blocks.

    query: [rows, heads, dim]. pools: [2, blocks, block, kv_heads, dim]. table: [rows, blocks of a row], int32.
    """
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    (rows, blocks), (block, kv_heads, dim) = table.shape, pools.shape[2:]
    backend = "fa2" if tensor_cores else "auto"
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        _workspace("paged_decode"), use_tensor_cores=tensor_cores, backend=backend
    )
    bounds = torch.arange(rows + 1, dtype=torch.int32, device=table.device) * blocks
    last_block = torch.full((rows,), block, dtype=torch.int32, device=table.device)
    wrapper.plan(
        bounds,
        table.flatten(),
        last_block,
        query.shape[1],
        kv_heads,
        dim,
        block,
        q_data_type=query.dtype,
        kv_data_type=pools.dtype,
    )
    return partial(wrapper.run, query, (pools[0], pools[1]), out=torch.empty_like(query))


def xqa_decode(query: Tensor, pools: Tensor, table: Tensor) -> Callable[[], Tensor]:
    """As ``paged_decode``, with TensorRT-LLM's kernel."""
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    tokens = table.shape[1] * pools.shape[2]
    lengths = torch.full((len(table),), tokens, dtype=torch.int32, device=table.device)
    return partial(
        xqa_batch_decode_with_kv_cache,
        query,
        (pools[0], pools[1]),
        _workspace("xqa_decode"),
        table,
        lengths,
        tokens,
        bmm1_scale=query.shape[-1] ** -0.5,
        out=torch.empty_like(query),
    )


@cache
def _workspace(user: str) -> Tensor:
    """Zeros at first. Calls on one stream share it, but only those of one user: XQA's kernel keeps counters there."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
