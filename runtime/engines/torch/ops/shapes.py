"""Operators that change or read shapes. Extents and indices of one element are computed in host memory."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.graph import constant_ints
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run


def _reshape(context: NodeContext) -> Run:
    context.attributes.expect("allowzero", 0)
    shape = context.ints(1)
    return lambda x: x.reshape([x.shape[axis] if n == 0 else n for axis, n in enumerate(shape)])


def _transpose(context: NodeContext) -> Run:
    perm = tuple(context.attributes.take("perm"))
    return lambda x: x.permute(perm)


def _split(context: NodeContext) -> Run:
    axis, sizes = context.attributes.take("axis", 0), list(context.ints(1))
    return lambda x: x.split(sizes, axis)


def _concat(context: NodeContext) -> Run:
    axis = context.attributes.take("axis")
    return lambda *parts: torch.cat(parts, axis)


def _squeeze(context: NodeContext) -> Run:
    if len(context.node.inputs) == 1:
        return torch.squeeze
    axes = context.ints(1)
    return lambda x: x.squeeze(axes)


def _unsqueeze(context: NodeContext) -> Run:
    axes = context.ints(1)

    def run(x: torch.Tensor) -> torch.Tensor:
        rank = x.ndim + len(axes)
        for axis in sorted(axis % rank for axis in axes):
            x = x.unsqueeze(axis)
        return x

    return run


def _expand(context: NodeContext) -> Run:
    if constant_ints(context.node.inputs[1]) is None:
        # From Shape, and so in host memory.
        return lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist())))
    fixed = context.ints(1)
    return lambda x: x.expand(torch.broadcast_shapes(x.shape, fixed))


def _shape(context: NodeContext) -> Run:
    start, end = context.attributes.take("start", 0), context.attributes.take("end", None)
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64)


def _range(context: NodeContext) -> Run:
    device = context.device
    return lambda start, limit, step: torch.arange(int(start), int(limit), int(step), device=device)


ROWS: dict[str, Builder] = {
    "Concat": _concat,
    "Expand": _expand,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
