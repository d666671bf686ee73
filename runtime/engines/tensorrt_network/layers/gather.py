"""GATHER and SCATTER: elements at positions given by a tensor of indices."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def gather(call: LayerCall) -> Tensor:
    """Slices along an axis (DEFAULT), an element per index (ELEMENT), or slices at tuples of indices (ND)."""
    mode = call.expect("mode", "DEFAULT", "ELEMENT", "ND")
    if mode == "ND":
        return _gather_nd(call, call["num_elementwise_dims"])
    data = call.input(0)
    axis = call.axis("axis", data.dim())
    indices = _inside(call, call.input(1), data.shape[axis])
    if mode == "ELEMENT":
        call.same_rank(data, indices)
        return data.gather(axis, indices)
    if call["num_elementwise_dims"] == 0:
        rows = data.index_select(axis, indices.reshape(-1))
        return rows.reshape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
    batch = max(data.shape[0], indices.shape[0])
    data, indices = data.expand(batch, *data.shape[1:]), indices.expand(batch, *indices.shape[1:])
    picked = [one.index_select(axis - 1, row.reshape(-1)) for one, row in zip(data, indices, strict=True)]
    sizes = (*data.shape[:axis], *indices.shape[1:], *data.shape[axis + 1 :])
    return torch.stack(picked).reshape(sizes) if picked else data.new_empty(sizes)


def scatter(call: LayerCall) -> Tensor:
    """``data`` with ``updates`` at the positions ``indices``.

    EngineError if one position has updates that differ: TensorRT does not define which one remains.
    """
    data, indices, updates = (call.input(index) for index in range(3))
    mode = call.expect("mode", "ELEMENT", "ND")
    found = data.clone()
    if mode == "ELEMENT":
        axis = call.axis("axis", data.dim())
        positions = _inside(call, indices, data.shape[axis])
        remaining = found.scatter_(axis, positions, updates).gather(axis, positions)
    else:
        flat, rest = _flat_indices(call, data, indices, 0)
        rows, updates = found.reshape(-1, *rest), updates.reshape(-1, *rest)
        rows[flat.reshape(-1)] = updates
        remaining = rows[flat.reshape(-1)]
    if not data.is_meta and not torch.allclose(remaining, updates, rtol=0, atol=0, equal_nan=True):
        raise call.error("expected equal updates of a repeated position, found updates that differ")
    return found


def _gather_nd(call: LayerCall, batch_axes: int) -> Tensor:
    data, indices = call.input(0), call.input(1)
    flat, rest = _flat_indices(call, data, indices, batch_axes)
    return data.reshape(-1, *rest)[flat]


def _flat_indices(call: LayerCall, data: Tensor, indices: Tensor, batch_axes: int) -> tuple[Tensor, list[int]]:
    """Row numbers for tuples of ``indices`` [..., n] in ``data`` with its first batch_axes + n axes flattened, and the
    other sizes."""
    count = indices.shape[-1]
    sizes, rest = list(data.shape[: batch_axes + count]), list(data.shape[batch_axes + count :])
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for axis, size in enumerate(sizes):
        if axis < batch_axes:
            shape = [size if index == axis else 1 for index in range(flat.dim())]
            positions = torch.arange(size, device=indices.device).reshape(shape)
        else:
            positions = _inside(call, indices[..., axis - batch_axes], size)
        flat = flat * size + positions
    return flat, rest


def _inside(call: LayerCall, indices: Tensor, size: int) -> Tensor:
    """int64 indices from 0; negative ones count from the end. EngineError for one out of range of ``size`` elements."""
    positions = indices.to(torch.int64)
    if positions.is_meta or not positions.numel():
        return positions
    if int(positions.min()) < -size or int(positions.max()) >= size:
        raise call.error(f"expected indices of {size} elements, found {int(positions.min())} to {int(positions.max())}")
    return torch.where(positions < 0, positions + size, positions)
