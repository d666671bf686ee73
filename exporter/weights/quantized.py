"""quantized.safetensors: weights whose bytes in the checkpoint are in another order than the graph's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot, read_safetensors
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, QuantizedTensor, byte_view
from hybridge.exporter.weights.placing import QUANTIZED_FILE, WEIGHTS_FOLDER
from hybridge.exporter.weights.source_files import SourceFiles, write_all

# A shard is not placed if more than this fraction of it is converted; its other tensors are copied instead.
_MOST_TWICE = 1 / 8
_BYTES = DType.UINT8


@dataclass(frozen=True)
class PlacedRounding:
    """How inputs are rounded; fields as of InputRounding."""

    dtype: DType
    group: int | None
    scale: TensorSlot | None


@dataclass(frozen=True)
class PlacedWeight:
    """The initializers of a quantised weight under the artifact's folder; fields as of QuantizedTensor."""

    shape: tuple[int, ...]
    values: TensorSlot
    scales: TensorSlot
    block: int | None
    zero_points: TensorSlot | None = None
    global_scale: TensorSlot | None = None
    order: TensorSlot | None = None
    factors: TensorSlot | None = None
    inputs: PlacedRounding | None = None


def shards_to_place(
    shards: Iterable[SafetensorsFile], quantized: Mapping[str, QuantizedTensor]
) -> tuple[SafetensorsFile, ...]:
    """The shards that an artifact refers to; of the others, what it uses is copied with the converted weights."""
    twice: dict[Path, int] = {}
    for weight in quantized.values():
        used = [part.stored for part in weight.parts.values() if part.stored is not None]
        for slot in weight.sources:
            if not any(_holds(whole, slot) for whole in used):
                twice[slot.path] = twice.get(slot.path, 0) + slot.nbytes
    return tuple(shard for shard in shards if twice.get(shard.path, 0) <= _MOST_TWICE * shard.nbytes)


def _holds(whole: TensorSlot, slot: TensorSlot) -> bool:
    """Whether the bytes of ``slot`` are among those of ``whole``."""
    return whole.path == slot.path and whole.offset <= slot.offset < whole.offset + max(1, whole.nbytes)


def place_quantized(
    folder: Path,
    weights: Iterable[QuantizedTensor],
    plain: Iterable[TensorSlot],
    placed: Mapping[str, TensorSlot],
    advance: Callable[[int], None],
) -> tuple[dict[str, PlacedWeight], dict[str, TensorSlot]]:
    """Write the weights and ``plain`` tensors that no placed shard holds to ``folder``/weights/quantized.safetensors.

    placed: the tensors of the placed shards. advance: called with the number of bytes written since its last call.
    CheckpointError: a tensor cannot be read. OSError: the disk is full or not writable.
    """
    weights, plain = tuple(weights), tuple(plain)
    new: dict[str, GraphTensor] = {}
    for weight in weights:
        for suffix, part in weight.parts.items():
            if part.stored is None or part.stored.name not in placed:
                new[_name(weight, suffix)] = part
    for slot in plain:
        if slot.name not in placed:
            new[slot.name] = GraphTensor(slot.dtype, slot.shape, stored=slot)
    written = _write(folder, new, advance) if new else {}

    def slot_of(weight: QuantizedTensor, suffix: str, part: GraphTensor) -> TensorSlot:
        if part.stored is None or part.stored.name not in placed:
            return replace(written[_name(weight, suffix)], dtype=part.dtype, shape=part.shape)
        found = placed[part.stored.name]
        if part.stored.nbytes != found.nbytes:  # several tensors, one after another
            found = replace(found, offset=part.stored.offset, nbytes=part.stored.nbytes)
        return replace(found, dtype=part.dtype, shape=part.shape)

    return {weight.name: _placed(weight, slot_of) for weight in weights}, {
        slot.name: placed[slot.name] if slot.name in placed else written[slot.name] for slot in plain
    }


def _name(weight: QuantizedTensor, suffix: str) -> str:
    return weight.name.removesuffix("weight") + suffix if weight.name.endswith(".weight") else f"{weight.name}.{suffix}"


def _placed(
    weight: QuantizedTensor, slot_of: Callable[[QuantizedTensor, str, GraphTensor], TensorSlot]
) -> PlacedWeight:
    slots = {suffix: slot_of(weight, suffix, part) for suffix, part in weight.parts.items()}
    rounding = weight.inputs
    scale = slots.get("input_scale")
    inputs = None if rounding is None else PlacedRounding(rounding.dtype, rounding.group, scale)
    return PlacedWeight(
        weight.shape,
        slots["weight"],
        slots["weight_scale"],
        weight.block,
        slots.get("weight_zero_point"),
        slots.get("weight_global_scale"),
        slots.get("weight_order"),
        slots.get("pre_quant_scale"),
        inputs,
    )


def _write(folder: Path, tensors: Mapping[str, GraphTensor], advance: Callable[[int], None]) -> dict[str, TensorSlot]:
    path = folder / WEIGHTS_FOLDER / QUANTIZED_FILE
    # Wider elements come first, so that every tensor is aligned to its elements.
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    sizes = {name: tensor.dtype.nbytes(prod(tensor.shape)) for name, tensor in ordered.items()}
    with path.open("xb", buffering=0) as file, SourceFiles() as sources:
        header = {name: _stored_form(tensor, sizes[name]) for name, tensor in ordered.items()}
        write_all(file, np.frombuffer(safetensors_header(header), np.uint8))
        for name, tensor in ordered.items():
            start = file.tell()
            append_tensor(file, tensor, sources)
            count = file.tell() - start
            if count != sizes[name]:
                raise CheckpointError(
                    f"{name}: expected {sizes[name]} bytes, found {count}: fetch the checkpoint again"
                )
            advance(count)
        file.truncate(file.tell())
    return dict(read_safetensors(path).tensors)


def append_tensor(file: FileIO, tensor: GraphTensor, sources: SourceFiles) -> None:
    """Write the bytes of ``tensor``; zeros become a hole in the file, as in a sparse checkpoint.

    CheckpointError: it cannot be read. OSError: the disk is full or not writable.
    """
    if tensor.repeats > 1:
        (number,) = tensor.parts
        raw = sources.read(number.stored) if number.stored else np.concatenate([byte_view(p) for p in number.pieces()])
        write_all(file, np.tile(raw, tensor.repeats))
    elif tensor.stored is not None:
        sources.copy(tensor.stored, file)
    elif tensor.rows_apart is not None:
        sources.copy_rows_apart(tensor.rows_apart, file)
    elif tensor.parts:
        for part in tensor.parts:
            append_tensor(file, part, sources)
    else:
        for piece in tensor.pieces():
            raw = byte_view(piece)
            if raw.any():
                write_all(file, raw)
            else:
                file.seek(len(raw), os.SEEK_CUR)


def _stored_form(tensor: GraphTensor, nbytes: int) -> tuple[DType, tuple[int, ...]]:
    """Shape in bytes: two 4-bit numbers of the last axis share a byte."""
    if nbytes == prod(tensor.shape) * tensor.dtype.itemsize:
        return tensor.dtype, tensor.shape
    if tensor.shape and tensor.shape[-1] % 2 == 0:
        return _BYTES, (*tensor.shape[:-1], tensor.shape[-1] // 2)
    return _BYTES, (nbytes,)
