"""Eager ``paged_attention`` and ``paged_attention_fp8``: one row after the other, its keys and values gathered."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.reference.e4m3 import exact_from_e4m3
from hybridge.trt_plugins.reference.packed import row_bounds
from hybridge.trt_plugins.reference.precision import work_dtype


def paged_attention(
    query: Tensor,
    kv_pool: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    scale: float,
    sliding_window: int,
    softcap: float,
) -> Tensor:
    """Causal attention of packed rows over their blocks.

    Args:
        query: [tokens, heads, head_dim]. kv_pool: [parts, num_blocks, block_size, kv_heads, head_dim]; one part: keys
            are the values too.
        block_table: [rows, max_blocks] int32. query_start_loc: [rows + 1] int32. seq_lens: [rows] int32.
        sinks: [heads] float32 or None.
        scale, sliding_window, softcap: see the operator's declaration; 0 means the default, none, none.

    Returns:
        y like query; zero for tokens of padding rows.

    Raises:
        UnsupportedError: query_start_loc and seq_lens disagree about the rows.
    """

    def gathered(row: int, begin: int, end: int) -> Tensor:
        return _gathered(kv_pool, block_table[row], begin, end)

    return _by_rows(query, gathered, query_start_loc, seq_lens, sinks, scale, sliding_window, softcap)


def paged_attention_fp8(
    query: Tensor,
    kv_pool: Tensor,
    kv_scales: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    scale: float,
    sliding_window: int,
    softcap: float,
) -> Tensor:
    """The same over a pool of e4m3: kv_pool uint8, kv_scales [parts, num_blocks, kv_heads, block_size]."""
    by_token = kv_scales.transpose(2, 3)

    def gathered(row: int, begin: int, end: int) -> Tensor:
        numbers, scales = (_gathered(pool, block_table[row], begin, end) for pool in (kv_pool, by_token))
        return exact_from_e4m3(numbers.view(torch.float8_e4m3fn), scales)

    return _by_rows(query, gathered, query_start_loc, seq_lens, sinks, scale, sliding_window, softcap)


def _by_rows(
    query: Tensor,
    gathered: Callable[[int, int, int], Tensor],
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    scale: float,
    sliding_window: int,
    softcap: float,
) -> Tensor:
    """``gathered``: keys and values [parts, n, kv_heads, head_dim] of a row between two positions."""
    work, y = work_dtype(query), torch.zeros_like(query)
    bounds = row_bounds(PACKED_OPS["paged_attention"], query_start_loc, len(seq_lens))
    for row, ((begin, end), length) in enumerate(zip(bounds, seq_lens.tolist(), strict=True)):
        if begin == end or length == 0:
            continue
        first = length - (end - begin)  # position of the first new token
        seen = max(0, first - sliding_window + 1) if sliding_window else 0
        found = gathered(row, seen, length).to(work)
        keys, values = found[0], found[-1]
        q = query[begin:end].to(work) * (scale or query.shape[-1] ** -0.5)
        y[begin:end] = _attended(q, keys, values, sinks, first - seen, sliding_window, softcap).to(y.dtype)
    return y


def _gathered(kv_pool: Tensor, blocks: Tensor, begin: int, end: int) -> Tensor:
    """Keys and values of positions begin..end-1 of one row: [parts, positions, kv_heads, head_dim]."""
    size = kv_pool.shape[2]
    positions = torch.arange(begin, end, device=kv_pool.device)
    indices = blocks.to(torch.int64)[positions // size] * size + positions % size
    return kv_pool.flatten(1, 2)[:, indices]


def _attended(
    q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, first: int, sliding_window: int, softcap: float
) -> Tensor:
    """[tokens, heads, head_dim] of one row; ``first`` is the place of the first token among the keys."""
    ratio = q.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(ratio, 1) for tensor in (keys, values))
    scores = torch.einsum("thd,shd->hts", q, keys)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    token = first + torch.arange(q.shape[0], device=q.device)[:, None]
    position = torch.arange(keys.shape[0], device=q.device)
    visible = position <= token
    if sliding_window:
        visible = visible & (position > token - sliding_window)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)[:, None, None].expand(-1, q.shape[0], 1)], -1)
    weights = scores.softmax(-1)[..., : keys.shape[0]]
    return torch.einsum("hts,shd->thd", weights, values)
