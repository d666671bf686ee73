"""Weights of all experts of a layer in one tensor: each expert is read as a matrix, and the matrices are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.joined import joined_weight
from hybridge.exporter.checkpoint.quantized.stored import StoredTensors
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, QuantizedTensor, byte_view

# More than any model has; a forged header must not make the reader read a million experts.
_MOST_EXPERTS = 4096


def is_stacked(name: str, stored: StoredTensors) -> bool:
    """Whether the checkpoint has the tensor ``name`` with an axis of experts."""
    return name in stored.left and len(stored.left[name].shape) == 3


def read_experts(
    name: str, parts: Mapping[str, str], read: Callable[[str, StoredTensors], QuantizedTensor], stored: StoredTensors
) -> QuantizedTensor:
    """The weight ``name`` [experts, rows, columns].

    parts: the last part of the name of an expert's tensor to the name of the tensor with those of all experts, the
    numbers first; those that the checkpoint lacks are left out. A tensor of one element belongs to every expert.
    read: reads the matrix of a module from its own tensors. CheckpointError: the tensors contradict each other.
    """
    slots = {last: stored.left.pop(whole) for last, whole in parts.items() if whole in stored.left}
    numbers = next(iter(slots.values()))
    if 0 in numbers.shape or numbers.shape[0] > _MOST_EXPERTS:
        raise CheckpointError(
            f"{numbers.name}: expected at most {_MOST_EXPERTS} experts of at least one number, found shape "
            f"{list(numbers.shape)}"
        )
    count, weights = numbers.shape[0], []
    names = {f"{name}.{last}": whole for last, whole in parts.items()}
    for expert in range(count):
        own = StoredTensors(
            {f"{name}.{last}": _expert_slot(last, slot, expert, count) for last, slot in slots.items()}, names
        )
        weights.append(read(name, own))
        if own.left:
            unused = next(iter(own.left.values()))
            raise CheckpointError(f"{unused.name}: expected no such tensor by the quantisation config, found one")
    return replace(joined_weight(name, weights), sources=tuple(slots.values()), experts=count)


def rows_apart(weight: QuantizedTensor) -> QuantizedTensor:
    """``weight``, whose rows 2 i and 2 i + 1 belong to two matrices, with the rows of the first before the others."""
    if weight.shape[0] % 2:
        raise CheckpointError(f"{weight.name}: expected an even number of rows, found {weight.shape[0]}")
    return replace(weight, values=_apart(weight.values), scales=_apart(weight.scales))


def _expert_slot(last: str, slot: TensorSlot, expert: int, count: int) -> TensorSlot:
    """The part of ``slot`` that belongs to ``expert``; it has the name of the whole."""
    if last == "weight_shape" and slot.shape == (3,):  # [experts, rows, columns]
        size = slot.dtype.itemsize
        return replace(slot, shape=(2,), offset=slot.offset + size, nbytes=2 * size)
    if slot.shape[:1] == (count,):
        nbytes = slot.nbytes // count
        return replace(slot, shape=slot.shape[1:], offset=slot.offset + expert * nbytes, nbytes=nbytes)
    if prod(slot.shape) == 1:
        return replace(slot, shape=())
    raise CheckpointError(f"{slot.name}: expected {count} experts, found shape {list(slot.shape)}")


def _apart(tensor: GraphTensor) -> GraphTensor:
    rows = tensor.shape[0]
    if tensor.stored is not None:
        slot = replace(tensor.stored, dtype=DType.UINT8, shape=(rows, tensor.stored.nbytes // rows))
        return GraphTensor(tensor.dtype, tensor.shape, rows_apart=slot)

    def blocks() -> Iterator[np.ndarray]:
        whole = np.concatenate([byte_view(piece) for piece in tensor.pieces()]).reshape(rows, -1)
        yield whole[0::2]
        yield whole[1::2]

    return GraphTensor(tensor.dtype, tensor.shape, blocks=blocks)
