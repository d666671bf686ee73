"""SLICE: a start, a size and a stride for each axis, and values for positions outside the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def slices(call: LayerCall) -> Tensor:
    """Element start + i * stride of each axis; start, sizes and strides are attributes or inputs 1 to 3."""
    value, mode = call.input(0), call["mode"]
    axes = call.sizes(5, "axes")
    starts, sizes, strides = (
        _of_axes(call, call.sizes(index, name), axes, value.shape, default)
        for index, name, default in ((1, "start", [0] * value.dim()), (2, "shape", value.shape), (3, "stride", None))
    )
    outside: list[tuple[int, Tensor]] = []
    for axis, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
        if size < 0:
            raise call.error(f"expected sizes of at least 0, found {sizes} of the input {list(value.shape)}")
        if (start, size, stride) == (0, value.shape[axis], 1):
            continue
        length = value.shape[axis]
        if stride == 1 and 0 <= start <= length - size:
            value = value.narrow(axis, start, size)
            continue
        positions = start + stride * torch.arange(size)
        missing = (positions < 0) | (positions >= length)
        if missing.any():
            positions = _inside(call, mode, positions, length)
            if mode == "FILL":
                outside.append((axis, missing))
        if positions.numel() and length == 0:
            value = _filled(call, value, axis, size)
        else:
            value = value.index_select(axis, positions.to(value.device))
    for axis, missing in outside:
        mask = missing.reshape([-1 if index == axis else 1 for index in range(value.dim())])
        value = torch.where(mask.to(value.device), _fill_value(call, value), value)
    return value


def _of_axes(
    call: LayerCall,
    given: Sequence[int] | None,
    axes: Sequence[int] | None,
    shape: Sequence[int],
    default: Sequence[int] | None,
) -> list[int]:
    """One number for each axis: ``given`` belongs to ``axes``, or to all axes if that is None."""
    if given is None:
        raise call.error("expected start, size and stride of a slice, found one left out")
    if axes is None:
        if len(given) != len(shape):
            raise call.error(f"expected {len(shape)} numbers, one for each axis, found {list(given)}")
        return list(given)
    found = list(default) if default is not None else [1] * len(shape)
    for axis, number in zip(axes, given, strict=True):
        found[axis] = number
    return found


def _inside(call: LayerCall, mode: str, positions: Tensor, length: int) -> Tensor:
    """The position in an axis of ``length`` elements that each of ``positions`` reads, which may be out of range."""
    if mode == "WRAP" and length:
        return positions % length
    if mode in ("CLAMP", "FILL"):
        return positions.clamp(0, max(length - 1, 0))
    if mode == "REFLECT" and length > 1:
        period = 2 * (length - 1)
        folded = positions % period
        return torch.minimum(folded, period - folded)
    raise call.error(
        f"expected positions in an axis of {length} elements, found {int(positions.min())} to {int(positions.max())}"
    )


def _filled(call: LayerCall, value: Tensor, axis: int, size: int) -> Tensor:
    """``size`` elements read from an axis of length 0."""
    if call["mode"] != "FILL":
        raise call.error("expected elements to repeat, found an axis without any")
    sizes = [size if index == axis else n for index, n in enumerate(value.shape)]
    return _fill_value(call, value).expand(sizes)


def _fill_value(call: LayerCall, value: Tensor) -> Tensor:
    fill = call.optional(4)
    return torch.zeros((), dtype=value.dtype, device=value.device) if fill is None else fill.reshape(()).to(value)
