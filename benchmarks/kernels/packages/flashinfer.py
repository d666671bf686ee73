"""flashinfer: sampling, Mamba2's state update, the gated delta rule, attention of one token per row over blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.packages.mamba_ssm import of_heads

DISTRIBUTION, NAME = "flashinfer-python", "flashinfer"
Run = Callable[[], tuple[Tensor, Tensor]]
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


def gated_delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Run:
    """o and the state, which is updated in place; shapes as ``fla.gated_delta_step``, state float32 or bfloat16.

    The kernel computes g and beta from 16-bit data itself.
    """
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

    q, k, v, a, b = (
        each.unsqueeze(1).contiguous()
        for each in (q, k, v, g.squeeze(-1).neg().expm1().log().to(q.dtype), beta.float().logit().to(q.dtype))
    )
    transposed, o, zeros = _keys_last(state), torch.empty_like(v), torch.zeros_like(g[0, :, 0])
    # A 16-bit state without indices would cost a kernel that makes them.
    indices = torch.arange(len(state), dtype=torch.int32, device=state.device)
    where = {"initial_state": transposed, "initial_state_indices": indices} if state.dtype == q.dtype else {}
    call = partial(
        gated_delta_rule_decode_pretranspose,
        *(q, k, v, None if where else transposed, zeros, a, zeros, b),
        output=o,
        **where,
    )

    def run() -> tuple[Tensor, Tensor]:
        call()
        return o.squeeze(1), state

    return run


def gated_delta_prompt(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    use_cp: bool | str = "auto",
    normalized: bool = False,
) -> Run:
    """o and the last states, as new tensors; shapes as ``fla.gated_delta_prompt``, state float32.

    use_cp: splits of long rows. normalized: q and k are normalised beforehand. Decays are computed beforehand.
    """
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    rows, time = q.shape[:2]
    if normalized:
        q, k = (functional.normalize(each.float(), dim=-1).to(each.dtype) for each in (q, k))
    q, k, v, g, beta = (each.flatten(0, 1).contiguous() for each in (q, k, v, g.squeeze(-1).exp(), beta.float()))
    before, o = state.transpose(-1, -2).contiguous(), torch.empty_like(v)
    after = torch.empty_like(before)
    call = partial(
        chunk_gated_delta_rule,
        *(q, k, v, g, beta),
        initial_state=before,
        output_final_state=True,
        cu_seqlens=torch.arange(rows + 1, dtype=torch.int32, device=q.device) * time,
        use_qk_l2norm_in_kernel=not normalized,
        output=o,
        output_state=after,
        use_cp=use_cp,
        max_seqlen=time,
    )

    def run() -> tuple[Tensor, Tensor]:
        call()
        return o.unflatten(0, (rows, time)), after.transpose(-1, -2)

    return run


def channel_delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Run:
    """o and the state, which is updated in place; shapes as ``fla.channel_delta_step``, state bfloat16."""
    from flashinfer.kda import recurrent_kda

    tokens = [each.unsqueeze(1).to(q.dtype).contiguous() for each in (q, k, v, g, beta)]
    o = torch.empty_like(tokens[2])
    call = partial(recurrent_kda, *tokens, initial_state=_keys_last(state), output_final_state=True, output=o)

    def run() -> tuple[Tensor, Tensor]:
        call()
        return o.squeeze(1), state

    return run


def _keys_last(state: Tensor) -> Tensor:
    """The state as [rows, heads, value_size, key_size], contiguous. ``state`` becomes a view of it."""
    transposed = state.transpose(-1, -2).contiguous()
    state.data = transposed.transpose(-1, -2)
    return transposed


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
