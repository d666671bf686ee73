"""QUANTIZE and DEQUANTIZE: one scale for a tensor, for each index of an axis, or for each block."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall

# The smallest and the largest number of each type.
_LIMITS = {"INT8": (-128.0, 127.0), "INT4": (-8.0, 7.0), "FP8": (-448.0, 448.0)}


def dequantize(call: LayerCall) -> Tensor:
    """(number - zero point) * scale."""
    value, scale = call.input(0).float(), _scale(call)
    zero = call.optional(2)
    if zero is not None:
        value = value - _repeated(call, zero.float(), value)
    return value * scale


def quantize(call: LayerCall) -> Tensor:
    """number / scale, rounded to nearest with ties to even and clamped to the type's range."""
    value, kind = call.wide(0) / _scale(call), call.expect("to_type", *_LIMITS)
    if kind != "FP8":
        value = torch.round(value)
    return value.clamp(*_LIMITS[kind])


def _scale(call: LayerCall) -> Tensor:
    return _repeated(call, call.wide(1), call.input(0))


def _repeated(call: LayerCall, scale: Tensor, value: Tensor) -> Tensor:
    """``scale`` in the shape of ``value``, or one that broadcasts to it."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1 and value.dim() > 1:
        axis = call.axis("axis", value.dim())
        return scale.reshape([-1 if index == axis else 1 for index in range(value.dim())])
    if scale.dim() != value.dim() or any(n % max(s, 1) for n, s in zip(value.shape, scale.shape, strict=True)):
        raise call.error(f"expected scales of whole blocks of {list(value.shape)}, found {list(scale.shape)}")
    for axis, size in enumerate(value.shape):
        scale = scale.repeat_interleave(size // scale.shape[axis], axis) if scale.shape[axis] else scale
    return scale
