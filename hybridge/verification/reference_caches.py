"""Caches of transformers: filled with given keys and values, rounded like the artifact's, read in its form."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_scales import StateScales
from hybridge.verification.cache_scales import CacheScale
from hybridge.verification.long_windows import FilledCaches


def fill_layer(layer: Any, filled: FilledCaches, k: int, scale: CacheScale) -> None:
    """Fill a layer of an empty DynamicCache with what ``filled``, by pools of ``scale``, has for attention layer ``k``.

    Masks are computed as if the layer held it all, but it is in memory only while the attention layer runs.
    """
    import torch

    stored = (filled.first(name) for name in (names.past_key(k), names.past_value(k)))
    keys, values = (numbers * factor for numbers, factor in zip(stored, scale.in_pools, strict=True))
    # A layer with a window holds all but one of its tokens.
    cached = min(filled.length, layer.sliding_window - 1) if layer.is_sliding else filled.length
    row = torch.zeros(1, len(keys), 1, keys.shape[-1])
    layer.lazy_initialization(row, row)
    layer.keys = layer.values = row.expand(-1, -1, cached, -1)
    if layer.is_sliding:
        layer.cumulative_length = filled.length
    layer.update = partial(_update_after, layer, layer.update, (keys, values), filled.length)


def _update_after(
    layer: Any, update: Any, first: tuple[np.ndarray, np.ndarray], length: int, keys: Any, *rest: Any, **more: Any
) -> Any:
    """``update`` of ``layer`` after ``first`` keys and values and zeros up to ``length``; it keeps the new ones."""
    import torch

    cached = layer.keys.shape[2]
    full = [torch.zeros(1, len(array), length, array.shape[-1]) for array in first]
    for tensor, array in zip(full, first, strict=True):
        tensor[0, :, : array.shape[1]] = torch.from_numpy(array)
    layer.keys, layer.values = (tensor[:, :, length - cached :] for tensor in full)
    found = update(keys, *rest, **more)
    new = keys.shape[2]
    layer.keys, layer.values = (tensor[:, :, -new:].clone() for tensor in found)
    return found


def joined_latents(keys: Any, values: Any, head_dim: int) -> tuple[Any, Any]:
    """``keys`` and ``values`` [batch, kv_heads, tokens, size] as an artifact with ``head_dim`` caches them.

    Those of latent attention are a latent and the shared part of the keys: both are then the two joined.
    """
    import torch

    if keys.shape[-1] == values.shape[-1] == head_dim:
        return keys, values
    joined = torch.cat([keys, values], -1)
    return joined, joined


def with_heads(state: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``state`` of one row in an artifact's ``shape``.

    For a shape with one head, the axis of heads may be absent, or there are several heads (zamba's).
    """
    return state.reshape(shape) if shape[:1] == (1,) else state


def update_rounded(
    update: Any, head_dim: int, scale: CacheScale, keys: Any, values: Any, *rest: Any, **more: Any
) -> Any:
    """``update`` of a cache's layer with keys and values [batch, kv_heads, tokens, size] rounded to e4m3.

    They are divided by ``scale`` before that, and multiplied afterwards.
    """
    import torch

    from hybridge.trt_plugins.reference.e4m3 import e4m3_from, exact_from_e4m3

    sizes = keys.shape[-1], values.shape[-1]
    joined, factors = joined_latents(keys, values, head_dim), [torch.from_numpy(part) for part in scale.pair]
    if sum(sizes) == head_dim:
        factors = [factors[0], factors[0]]
    numbers = [e4m3_from(x / factor) for x, factor in zip(joined, factors, strict=True)]
    keys, values = (
        (exact_from_e4m3(*pair) * factor).to(keys.dtype) for pair, factor in zip(numbers, factors, strict=True)
    )
    if sum(sizes) == head_dim:
        keys, values = keys.split(sizes, -1)
    return update(keys, values, *rest, **more)


def round_state(cache: Any, index: int, own: StateScales) -> None:
    """Round the recurrent state of layer ``index`` to 8 bits with the scales of ``own``."""
    if hasattr(cache, "linear_cache"):  # minimax: [keys, values] instead of [values, keys]
        cache.linear_cache[index] = _rounded(cache.linear_cache[index].transpose(-1, -2), own).transpose(-1, -2)
        return
    states = cache.layers[index].recurrent_states
    states[0] = _rounded(states[0], own)


def _rounded(state: Any, own: StateScales) -> Any:
    import torch

    from hybridge.trt_plugins.reference.quantized_state import exact_state, quantized_state

    dtype = torch.int8 if own.dtype is DType.INT8 else torch.float8_e4m3fn
    return exact_state(*quantized_state(state, dtype, own.axis), own.axis).to(state.dtype)


def recurrent_states(
    cache: Any, index: int, state_names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]
) -> dict[str, np.ndarray]:
    """The states of layer ``index`` of one row, by graph input, as an artifact has them in ``shapes``."""
    if hasattr(cache, "linear_cache"):  # minimax: [keys, values] instead of [values, keys]
        return {state_names[0]: cache.linear_cache[index][0].transpose(1, 2).numpy()}
    layer = cache.layers[index]
    both = layer.conv_states, layer.recurrent_states
    found = zip(state_names, both, shapes, strict=False)
    return {name: with_heads(stored[0][0].numpy(), shape) for name, stored, shape in found}
