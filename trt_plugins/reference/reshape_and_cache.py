"""Eager ``reshape_and_cache``."""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_and_cache(key: Tensor, value: Tensor, kv_pool: Tensor, slot_mapping: Tensor) -> Tensor:
    """The pool with the keys and values of new tokens in their places.

    Args:
        key, value: [tokens, kv_heads, head_dim].
        kv_pool: [2, num_blocks, block_size, kv_heads, head_dim].
        slot_mapping: [tokens] int32, block * block_size + offset, -1 for a token without a place.

    Returns:
        kv_pool_out like kv_pool; every other place bit for bit as it was.
    """
    placed = slot_mapping >= 0
    places = slot_mapping[placed].to(torch.int64)
    pool = kv_pool.clone()
    slots = pool.flatten(1, 2)  # a view: [2, num_blocks * block_size, kv_heads, head_dim]
    slots[0, places], slots[1, places] = key[placed], value[placed]
    return pool
