"""Write the tensors of a PyTorch file as a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot, copy_tensor, read_safetensors
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.artifact.untrusted_file import open_inside, size_of


def convert_torch_file(source: SafetensorsFile, target: Path) -> Mapping[str, TensorSlot]:
    """Copy the tensors of ``source`` into the new file ``target``; the slot there of each of their names.

    Names that share their bytes (a head tied to the embedding) keep sharing them. OSError: the disk is full or not
    writable. CheckpointError: ``source`` changed since it was opened.
    """
    first: dict[tuple[object, ...], str] = {}
    for slot in sorted(source.tensors.values(), key=lambda slot: (-slot.dtype.itemsize, slot.offset, slot.name)):
        first.setdefault(_place(slot), slot.name)
    written = {name: source.tensors[name] for name in first.values()}
    header = safetensors_header({name: (slot.dtype, slot.shape) for name, slot in written.items()})
    path = source.path
    with (
        open_inside(path.parent, path.name, None, CheckpointError, "export again") as reader,
        target.open("xb") as writer,
    ):
        if size_of(reader) != source.nbytes:
            raise CheckpointError(f"{path}: changed while it was read: export again")
        writer.write(header)
        for slot in written.values():
            copy_tensor(reader, slot, writer)
    placed = read_safetensors(target).tensors
    return {name: placed[first[_place(slot)]] for name, slot in source.tensors.items()}


def _place(slot: TensorSlot) -> tuple[object, ...]:
    return slot.offset, slot.dtype, slot.shape
