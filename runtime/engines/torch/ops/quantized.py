"""Quantised weights as numbers to compute with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.fusion.quantized import WEIGHT_TILES, taken_form
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.runtime.engines.torch.weight_tiles import tiles_from_codes


def _dequantize_linear(context: NodeContext) -> Run:
    axis, block = context.attributes.take("axis", 1), context.attributes.take("block_size", 0)
    context.attributes.expect("output_dtype", 0)

    def run(values: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None = None) -> torch.Tensor:
        """values [rows, columns]; scales and zero_points of blocks [rows, columns / block], of rows [rows], or []."""
        numbers = values.float()
        wide = scales.float()
        offsets = None if zero_points is None else zero_points.float()
        if block:
            numbers = numbers.unflatten(axis, (-1, block))
            wide = wide.unsqueeze(axis + 1)
            offsets = None if offsets is None else offsets.unsqueeze(axis + 1)
        elif scales.ndim:
            sizes = [-1 if index == axis else 1 for index in range(numbers.ndim)]
            wide = wide.reshape(sizes)
            offsets = None if offsets is None else offsets.reshape(sizes)
        if offsets is not None:
            numbers = numbers - offsets
        return numbers.mul_(wide).reshape(values.shape).to(scales.dtype)

    return run


def _quantize_linear(context: NodeContext) -> Run:
    """One scale, no zero points. Ties round to even; values out of range saturate."""
    dtype = torch_from_dtype(DType.from_onnx(int(context.attributes.take("output_dtype"))))
    context.attributes.expect("axis", 1)
    context.attributes.expect("saturate", 1)
    top = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)

    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        numbers = x.float() / scale.float()
        return (numbers if dtype.is_floating_point else numbers.round()).clamp(top.min, top.max).to(dtype)

    return run


def _weight_tiles(context: NodeContext) -> Run:
    take, device = context.attributes.take, context.device
    form, parts, rows = taken_form(context.attributes), take("parts"), slice(take("begin"), take("end"))

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tiles and factors on the device, from the codes, scales, and tensor scales or zero points of the parts."""
        codes, scales, more = inputs[:parts], inputs[parts : 2 * parts], inputs[2 * parts :]
        counts = [len(part) for part in codes]

        def by_row(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
            """One number a row, of tensors that may have one for all their rows."""
            wide = zip(numbers, counts, strict=True)
            return torch.cat([part.to(device).float().reshape(-1).expand(count) for part, count in wide])[rows]

        def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            stored = torch.cat([tensor.to(device).view(torch.uint8) for tensor in tensors])[rows]
            return stored.view(tensors[0].dtype)

        def by_group(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
            """One number per group of the kernel, from tensors with one per row or per several such groups."""
            wide = by_row(numbers)[:, None] if numbers[0].ndim < 2 else joined(numbers)
            return wide.repeat_interleave(codes[0].shape[1] * 8 // (form.bits * form.group) // wide.shape[1], 1)

        found = by_row(scales) if form.group == 0 else by_group(scales)
        whole = by_row(more) if form.byte_scales else None
        return tiles_from_codes(form, joined(codes), found, whole, by_group(more) if form.zero_points else None)

    return run


ROWS: dict[str, Builder] = {"DequantizeLinear": _dequantize_linear, "QuantizeLinear": _quantize_linear}
FUSED_ROWS: dict[str, Builder] = {WEIGHT_TILES: _weight_tiles}
