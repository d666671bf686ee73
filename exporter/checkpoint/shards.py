"""The safetensors files of a checkpoint and the tensors in them, checked against the index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from artifact.errors import CheckpointError, UnsupportedError
from artifact.safetensors_file import SafetensorsFile, TensorSlot, read_safetensors
from exporter.checkpoint.entries import checked_file, plain_file, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def open_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    """The headers of all safetensors files of the checkpoint, by name.

    CheckpointError: no safetensors files, a missing or corrupt one, an index that names a path, is malformed or
    disagrees with its files. UnsupportedError: element types or layouts of other frameworks or quantisers.
    """
    single = checked_file(folder, SINGLE_FILE)
    index = read_json(folder, INDEX_FILE)
    if index is None:
        if single is None:
            raise _no_weights(folder)
        return (_read(single),)
    places = _weight_map(index)
    if single is not None and SINGLE_FILE not in places.values():
        raise CheckpointError(f"expected {SINGLE_FILE} or {INDEX_FILE}, found both: remove the one that is out of date")
    shards = []
    for name in sorted(set(places.values())):
        path = plain_file(folder, name, INDEX_FILE)
        if path is None:
            raise CheckpointError(f"{INDEX_FILE}: expected the shard {name}, found none: download it again")
        shards.append(_read(path))
    _check_index(places, shards)
    return tuple(shards)


def all_tensors(shards: tuple[SafetensorsFile, ...]) -> Mapping[str, TensorSlot]:
    """The tensors of all ``shards`` by name; CheckpointError if there are none or one is in two shards."""
    tensors: dict[str, TensorSlot] = {}
    for shard in shards:
        for name, slot in shard.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name} is in {tensors[name].path.name} and in {shard.path.name}: remove one of them"
                )
            tensors[name] = slot
    if not tensors:
        raise CheckpointError("expected weights, found safetensors files without a tensor: download them again")
    return MappingProxyType(tensors)


def _read(path: Path) -> SafetensorsFile:
    try:
        shard = read_safetensors(path)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}: export the original checkpoint, not a quantised or packed one") from error
    framework = shard.metadata.get("format", "pt")
    if framework != "pt":
        raise UnsupportedError(
            f"{path.name}: expected PyTorch's layout, found format {framework!r}: use the original checkpoint"
        )
    return shard


def _weight_map(index: dict) -> dict[str, str]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{INDEX_FILE}: expected weight_map, an object of tensor names: download it again")
    for name, place in places.items():
        if not isinstance(place, str):
            raise CheckpointError(f"{INDEX_FILE}: {name}: expected a file name, found {place!r}: download it again")
    return places


def _check_index(places: dict[str, str], shards: list[SafetensorsFile]) -> None:
    tensors = all_tensors(tuple(shards))
    for name, slot in tensors.items():
        if name not in places:
            raise CheckpointError(
                f"{slot.path.name}: tensor {name} is not in {INDEX_FILE}: the two do not belong together"
            )
    for name, place in places.items():
        if name not in tensors or tensors[name].path.name != place:
            raise CheckpointError(f"{INDEX_FILE}: expected tensor {name} in {place}, found none: download both again")


def _no_weights(folder: Path) -> CheckpointError:
    if any(folder.glob("pytorch_model*.bin")):
        return CheckpointError(
            f"{folder}: expected safetensors, found pytorch_model.bin: "
            "convert it (from_pretrained, then save_pretrained, of transformers)"
        )
    if others := sorted(p.name for p in folder.glob("*.safetensors")):
        return CheckpointError(
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, found only {', '.join(others[:3])}: download the rest"
        )
    return CheckpointError(
        f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, found no weights: download the checkpoint again"
    )
