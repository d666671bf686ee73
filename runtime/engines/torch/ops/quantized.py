"""Quantised weights as numbers to compute with."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run


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


ROWS: dict[str, Builder] = {"DequantizeLinear": _dequantize_linear}
