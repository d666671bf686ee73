"""Joins the quantised matrices of a layer's experts, so that the graph has the same few nodes for any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, InputRounding, QuantizedTensor, byte_view


def joined_weight(name: str, weights: Sequence[QuantizedTensor], experts: int | None = None) -> QuantizedTensor:
    """The weight ``name`` [all rows, columns]: ``weights``, of equal columns, one after another.

    experts: their number, where it is not that of ``weights``; those of one expert round their inputs in the same way.
    A scale or global scale of a whole matrix becomes one per row. CheckpointError: the weights are quantised in
    different ways. UnsupportedError: they have act-order or pre_quant_scale.
    """
    first, columns = weights[0], weights[0].shape[1]
    forms = {(w.values.dtype, w.scales.dtype, w.block, w.global_scale is None, w.shape[1]) for w in weights}
    if len(forms) > 1:
        raise CheckpointError(
            f"{first.name}: expected all experts of a layer quantised in the same way, found several ways"
        )
    if any(w.order is not None or w.factors is not None for w in weights):
        raise UnsupportedError(f"{first.name}: act-order (g_idx) and pre_quant_scale of experts are not supported")
    rows = sum(w.shape[0] for w in weights)
    groups = (rows,) if first.block is None else (rows, columns // first.block)
    return QuantizedTensor(
        name,
        first.format,
        (rows, columns),
        _joined(first.values.dtype, (rows, columns), [w.values for w in weights]),
        _scales([w.scales for w in weights], weights, groups),
        first.block,
        tuple(source for w in weights for source in w.sources),
        _zero_points(weights, groups),
        _global_scale(weights, rows),
        inputs=_inputs(weights[:: len(weights) // (experts or len(weights))]),
        unrounded=first.unrounded,
    )


def _inputs(weights: Sequence[QuantizedTensor]) -> InputRounding | None:
    """How the inputs of each expert are rounded; None unless all experts round them to the same type and groups."""
    found = [weight.inputs for weight in weights if weight.inputs is not None]
    if len(found) < len(weights) or len({(inputs.dtype, inputs.group) for inputs in found}) > 1:
        return None
    scales = [inputs.scale for inputs in found if inputs.scale is not None]
    if not scales:
        return found[0]

    parts = tuple(scale if scale.dtype is DType.FLOAT32 else _in_float32(scale) for scale in scales)
    return replace(found[0], scale=GraphTensor(DType.FLOAT32, (len(scales),), parts=parts))


def _in_float32(scalar: GraphTensor) -> GraphTensor:
    def blocks() -> Iterator[np.ndarray]:
        for piece in scalar.pieces():
            yield byte_view(piece).view(scalar.dtype.numpy).astype(np.float32)

    return GraphTensor(DType.FLOAT32, scalar.shape, blocks=blocks)


def _scales(scales: Sequence[GraphTensor], weights: Sequence[QuantizedTensor], shape: tuple[int, ...]) -> GraphTensor:
    """The scales of all weights, concatenated; the scale of a whole matrix is repeated for each of its rows."""
    parts = [
        tensor if tensor.shape else _repeated(tensor, weight.shape[0])
        for tensor, weight in zip(scales, weights, strict=True)
    ]
    return _joined(parts[0].dtype, shape, parts)


def _zero_points(weights: Sequence[QuantizedTensor], shape: tuple[int, ...]) -> GraphTensor | None:
    """The zero points of all weights, concatenated: zeros for a weight without any; None if no weight has any."""
    if all(w.zero_points is None for w in weights):
        return None
    parts = []
    for weight in weights:
        count = weight.shape[0] if len(shape) == 1 else weight.shape[0] * shape[1]
        zeros = GraphTensor(weight.values.dtype, (count,), blocks=_zeros(weight.values.dtype.nbytes(count)))
        points = weight.zero_points or zeros
        parts.append(points if points.shape else _repeated(points, weight.shape[0]))
    if parts[0].dtype is DType.INT4 and any(np.prod(part.shape) % 2 for part in parts):
        raise UnsupportedError(f"{weights[0].name}: an odd number of zero points of 4 bits is not supported")
    return _joined(parts[0].dtype, shape, parts)


def _global_scale(weights: Sequence[QuantizedTensor], rows: int) -> GraphTensor | None:
    """The global scale of each row; None if the weights have no global scales."""
    parts = [_repeated(w.global_scale, w.shape[0]) for w in weights if w.global_scale is not None]
    return _joined(parts[0].dtype, (rows,), parts) if parts else None


def _zeros(nbytes: int) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: iter([np.zeros(nbytes, np.uint8)])


def _repeated(tensor: GraphTensor, count: int) -> GraphTensor:
    """A scalar of 8 bits or more, repeated: [count]."""
    return GraphTensor(tensor.dtype, (count,), parts=(tensor,), repeats=count)


def _joined(dtype: DType, shape: tuple[int, ...], tensors: Sequence[GraphTensor]) -> GraphTensor:
    """``tensors`` in order: one stored tensor if they lie in a file one after another, else a copy."""
    slots = [tensor.stored for tensor in tensors if tensor.stored is not None]
    if len(slots) == len(tensors) and _are_adjacent(slots):
        run = replace(slots[0], dtype=dtype, shape=shape, nbytes=sum(slot.nbytes for slot in slots))
        return GraphTensor(dtype, shape, stored=run)
    return GraphTensor(dtype, shape, parts=tuple(tensors))


def _are_adjacent(slots: Sequence[TensorSlot]) -> bool:
    """Whether each of ``slots`` begins where the last one ends; other files than these are converted, and move."""
    return slots[0].path.suffix == ".safetensors" and all(
        (last.path, last.offset + last.nbytes) == (slot.path, slot.offset) for last, slot in pairwise(slots)
    )
