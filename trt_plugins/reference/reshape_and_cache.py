"""Eager ``reshape_and_cache`` and ``reshape_and_cache_fp8``."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.e4m3 import e4m3_from


def reshape_and_cache(key: Tensor, value: Tensor, kv_pool: Tensor, slot_mapping: Tensor) -> Tensor:
    """The pool with the keys and values of new tokens in their places.

    Args:
        key, value: [tokens, kv_heads, head_dim].
        kv_pool: [parts, num_blocks, block_size, kv_heads, head_dim]; one part: keys are the values too.
        slot_mapping: [tokens] int32, block * block_size + offset, -1 for a token without a place.

    Returns:
        kv_pool_out like kv_pool; every other place bit for bit as it was.
    """
    placed = slot_mapping >= 0
    indices = slot_mapping[placed].to(torch.int64)
    pool = kv_pool.clone()
    slots = pool.flatten(1, 2)  # a view: [parts, num_blocks * block_size, kv_heads, head_dim]
    slots[0, indices], slots[-1, indices] = key[placed], value[placed]
    return pool


def reshape_and_cache_fp8(
    key: Tensor, value: Tensor, kv_pool: Tensor, kv_scales: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for a pool of e4m3.

    Args:
        kv_pool: as above, uint8, the bytes of e4m3. kv_scales: [parts, num_blocks, kv_heads, block_size].

    Returns:
        kv_pool_out and kv_scales_out, like these.
    """
    numbers, scales = e4m3_from(torch.stack([key, value]))
    keys, values = numbers.view(torch.uint8).unbind()
    pool = reshape_and_cache(keys, values, kv_pool, slot_mapping)
    by_token = kv_scales.transpose(2, 3).contiguous().unsqueeze(-1)
    keys, values = scales.to(kv_scales.dtype).unsqueeze(-1).unbind()
    placed = reshape_and_cache(keys, values, by_token, slot_mapping)
    return pool, placed.squeeze(-1).transpose(2, 3).contiguous()
