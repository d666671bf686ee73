"""Types and shapes of what some ATen operators return.

For tensors without memory, torch computes these in Python and imports its compiler first, which takes longer than an
export. Other operators are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hybridge.artifact.errors import ExportError

_ATEN = torch.ops.aten


def _elementwise(*args: Any, **_options: Any) -> torch.Tensor:
    """Operands are broadcast; the result has the type of the last, since they have one type (aten.py)."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    rank = max(tensor.ndim for tensor in tensors)
    shapes = [(1,) * (rank - tensor.ndim) + tuple(tensor.shape) for tensor in tensors]
    shape = [max(extents) for extents in zip(*shapes, strict=True)]
    if any(n not in (1, most) for own in shapes for n, most in zip(own, shape, strict=True)):
        raise ExportError(f"expected operands that can be broadcast, found {[list(own) for own in shapes]}")
    return _empty(shape, tensors[-1].dtype)


def _eq(x: torch.Tensor, _other: float) -> torch.Tensor:
    return _empty(x.shape, torch.bool)


def _linear(x: torch.Tensor, weight: torch.Tensor, _bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        found = f"{x.dtype} {list(x.shape)} and {weight.dtype} {list(weight.shape)}"
        raise ExportError(f"linear: expected x [..., k] and weight [n, k] of one type, found {found}")
    return _empty((*x.shape[:-1], weight.shape[0]), x.dtype)


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    shapes = [list(tensor.shape) for tensor in tensors]
    total = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        raise ExportError(f"cat: expected other axes of one size, found {shapes}")
    axis = dim % tensors[0].ndim
    return _empty((*shapes[0][:axis], total, *shapes[0][axis:]), tensors[0].dtype)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


RESULTS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            _ATEN.add.Tensor,
            _ATEN.clamp.default,
            _ATEN.div.Tensor,
            _ATEN.gelu.default,
            _ATEN.mul.Tensor,
            _ATEN.neg.default,
            _ATEN.relu.default,
            _ATEN.sigmoid.default,
            _ATEN.silu.default,
            _ATEN.softplus.default,
            _ATEN.sqrt.default,
            _ATEN.tanh.default,
            _ATEN.where.self,
        ),
        _elementwise,
    ),
    _ATEN.cat.default: _cat,
    _ATEN.eq.Scalar: _eq,
    _ATEN.linear.default: _linear,
}
