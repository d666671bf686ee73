"""KV_CACHE_UPDATE, ATTENTION_INPUT and ATTENTION_OUTPUT."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall

_PADDED, _PACKED = "PADDED_BHND", "PACKED_NHD"


def kv_cache_update(call: LayerCall) -> Tensor:
    """Write ``update`` [batch, heads, new, size] into ``cache`` [batch, heads, positions, size], in its memory.

    The new positions of each row begin at ``write_indices`` [batch].
    """
    cache, update, starts = (call.input(index) for index in range(3))
    call.expect("cache_mode", "LINEAR")
    call.expect("update_form", _PADDED)
    if cache.is_meta:
        return cache
    count = update.shape[2]
    for row, start in enumerate(starts.tolist()):
        if not 0 <= start <= cache.shape[2] - count:
            raise call.error(f"expected {count} positions within {cache.shape[2]}, found them from {start} on")
        cache[row, :, start : start + count] = update[row]
    return cache


def attention_input(call: LayerCall) -> Tensor:
    """softmax(query key^T + mask) value, without a scale: the whole attention, whose inputs and outputs are layers.

    query [batch, heads, new, size]; key and value [batch, kv_heads, positions, size], each for heads / kv_heads heads;
    mask, broadcast to [batch, heads, new, positions]: bool, true where a position is attended to, or numbers to add.
    """
    for name in ("query_form", "key_value_form"):
        call.expect(name, _PADDED)
    for name in ("query_lengths", "key_value_lengths", "normalization_quantize_scale"):
        call.expect(name, None)
    query, key, value = (call.wide(index) for index in range(3))
    groups = query.shape[1] // key.shape[1]
    if key.shape[1] * groups != query.shape[1]:
        raise call.error(f"expected heads in groups of one size, found {query.shape[1]} for {key.shape[1]}")
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT
    mask = call.optional(3) if call["mask"] is not None else _causal_mask(call, scores)
    if mask is not None:
        lowest = torch.full((), float("-inf"), device=scores.device)
        scores = torch.where(mask, scores, lowest) if mask.dtype is torch.bool else scores + mask.float()
    if call.expect("norm_op", "SOFTMAX", "NONE") == "SOFTMAX":
        scores = torch.softmax(scores, -1)
    return scores @ value


def _causal_mask(call: LayerCall, scores: Tensor) -> Tensor | None:
    kind = call.expect("causal_kind", "NONE", "UPPER_LEFT", "LOWER_RIGHT")
    if kind == "NONE":
        return None
    new, positions = scores.shape[-2:]
    last = torch.arange(new, device=scores.device) + (positions - new if kind == "LOWER_RIGHT" else 0)
    return torch.arange(positions, device=scores.device) <= last[:, None]
