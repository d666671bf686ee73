"""REDUCE, CUMULATIVE, SOFTMAX, TOPK and NORMALIZATION: layers over whole axes, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall, axes_of_mask


def reduce(call: LayerCall) -> Tensor:
    """Sum, product, extreme or mean over the axes of a bit mask."""
    value, keep = call.wide(0), call["keep_dims"]
    operation = call.expect("op", "SUM", "PROD", "MAX", "MIN", "AVG")
    axes = axes_of_mask(call["axes"], value.dim())
    if not axes:
        return value
    if operation == "SUM":
        return value.sum(axes, keepdim=keep)
    if operation == "AVG":
        if value.is_floating_point():
            return value.mean(axes, keepdim=keep)
        raise call.error(f"expected floating numbers of a mean, found {value.dtype}")
    if operation == "MAX":
        return value.amax(axes, keepdim=keep)
    if operation == "MIN":
        return value.amin(axes, keepdim=keep)
    for axis in reversed(axes):
        value = value.prod(axis, keepdim=keep)
    return value


def cumulative(call: LayerCall) -> Tensor:
    """Cumulative sums along the axis of input 1, inclusive or exclusive, from either end."""
    value, axis = call.wide(0), (call.sizes(1) or [0])[0]
    call.expect("op", "SUM")
    if call["reverse"]:
        value = value.flip(axis)
    sums = value.cumsum(axis, dtype=value.dtype)
    if call["exclusive"]:
        sums = torch.cat([torch.zeros_like(sums.narrow(axis, 0, 1)), sums.narrow(axis, 0, sums.shape[axis] - 1)], axis)
    return sums.flip(axis) if call["reverse"] else sums


def softmax(call: LayerCall) -> Tensor:
    """Softmax over the single axis of a bit mask."""
    value = call.wide(0)
    axes = axes_of_mask(call["axes"], value.dim())
    if len(axes) != 1:
        raise call.error(f"expected one axis of a softmax, found {axes}")
    return torch.softmax(value, axes[0])


def topk(call: LayerCall) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements of an axis, in order, and their indices; the first of equal elements."""
    value = call.input(0)
    axes = axes_of_mask(call["axes"], value.dim())
    count = (call.sizes(1) or [call["k"]])[0]
    largest = call.expect("op", "MAX", "MIN") == "MAX"
    if len(axes) != 1 or not 0 <= count <= value.shape[axes[0]]:
        raise call.error(f"expected one axis with at least {count} elements, found axes {axes} of {list(value.shape)}")
    values, indices = torch.sort(value, dim=axes[0], descending=largest, stable=True)
    return values.narrow(axes[0], 0, count), indices.narrow(axes[0], 0, count)


def normalization(call: LayerCall) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes of a bit mask."""
    value, axes = call.wide(0), axes_of_mask(call["axes"], call.input(0).dim())
    if call["num_groups"] != 1:
        raise call.error(f"expected one group of channels, found {call['num_groups']}")
    mean = value.mean(axes, keepdim=True)
    variance = (value - mean).square().mean(axes, keepdim=True)
    normal = (value - mean) / torch.sqrt(variance + call["epsilon"])
    scale, bias = call.optional(1), call.optional(2)
    normal = normal if scale is None else normal * scale.float()
    return normal if bias is None else normal + bias.float()
