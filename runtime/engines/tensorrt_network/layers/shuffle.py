"""SHUFFLE, UNSQUEEZE, SQUEEZE, SHAPE and CONCATENATION: layers that only move elements."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def shuffle(call: LayerCall) -> Tensor:
    """Transpose, reshape, transpose; the shape is an attribute or input 1."""
    value = call.input(0)
    value = value.permute(call["first_transpose"][: value.dim()])
    sizes = call.sizes(1, "reshape_dims")
    if sizes is not None:
        value = value.reshape(_reshaped(call, list(value.shape), sizes))
    return value.permute(call["second_transpose"][: value.dim()])


def _reshaped(call: LayerCall, shape: list[int], sizes: list[int]) -> list[int]:
    """The new sizes: 0 copies the input's size if zeros are placeholders; one -1 is inferred."""
    if call["zero_is_placeholder"]:
        if any(size == 0 and index >= len(shape) for index, size in enumerate(sizes)):
            raise call.error(f"expected an axis to copy for each 0 of the shape {sizes}, found the input {shape}")
        sizes = [shape[index] if size == 0 else size for index, size in enumerate(sizes)]
    open_axes = [index for index, size in enumerate(sizes) if size == -1]
    known = math.prod(size for size in sizes if size != -1)
    if open_axes:
        sizes[open_axes[0]] = math.prod(shape) // known if known else 0
    if len(open_axes) > 1 or min(sizes, default=0) < 0 or math.prod(sizes) != math.prod(shape):
        raise call.error(f"expected a shape with as many elements as {shape}, found {sizes}")
    return sizes


def unsqueeze(call: LayerCall) -> Tensor:
    """Insert axes of size 1 at the output axes that input 1 lists."""
    value, axes = call.input(0), call.sizes(1) or []
    rank = value.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = value.unsqueeze(axis)
    return value


def squeeze(call: LayerCall) -> Tensor:
    """Remove the axes of size 1 that input 1 lists; all such axes if it is absent."""
    value, axes = call.input(0), call.sizes(1)
    if axes is None:
        return value.squeeze()
    for axis in sorted((axis % value.dim() for axis in axes), reverse=True):
        if value.shape[axis] != 1:
            raise call.error(f"expected size 1 of axis {axis}, found the input {list(value.shape)}")
        value = value.squeeze(axis)
    return value


def shape(call: LayerCall) -> Tensor:
    """The sizes of the input, int64 [rank]."""
    return torch.tensor(list(call.input(0).shape), dtype=torch.int64)


def concatenation(call: LayerCall) -> Tensor:
    """All inputs, concatenated along an axis."""
    values = [call.input(index) for index in range(len(call.inputs))]
    axis = call.axis("axis", values[0].dim())
    call.same_rank(*values)
    others = {tuple(size for index, size in enumerate(value.shape) if index != axis) for value in values}
    if len(others) > 1:
        raise call.error(f"expected inputs that differ in axis {axis} alone, found {[list(v.shape) for v in values]}")
    return torch.cat(values, axis)
