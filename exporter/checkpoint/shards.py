"""Which safetensors files make up a checkpoint, and which tensors they hold.

File names in an index are plain names in the checkpoint's own folder. The file behind such a name may be a
symbolic link (download caches store files as links to blobs); a name with a path separator is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from artifact.errors import CheckpointError
from artifact.json_fields import load_json_object
from artifact.safetensors_file import SafetensorsFile, TensorSlot, read_safetensors

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"


def read_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    """The headers of all shards of the checkpoint in ``folder``; CheckpointError when any is missing or unsafe."""
    if (folder / INDEX_FILE).exists():
        return _indexed_shards(folder)
    if (folder / SINGLE_FILE).exists():
        return (_read_shard(folder, SINGLE_FILE),)
    foreign = sorted(p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".gguf"})
    if foreign:
        raise CheckpointError(
            f"{folder}: expected {SINGLE_FILE}, found {foreign[0]}: save the model with safe_serialization=True"
        )
    raise CheckpointError(f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, found neither")


def tensors_of(shards: tuple[SafetensorsFile, ...]) -> Mapping[str, TensorSlot]:
    """All tensors by name; CheckpointError when two shards hold the same name."""
    tensors: dict[str, TensorSlot] = {}
    for shard in shards:
        for name, slot in shard.tensors.items():
            if name in tensors:
                raise CheckpointError(f"tensor {name} is in both {tensors[name].path.name} and {shard.path.name}")
            tensors[name] = slot
    return tensors


def _indexed_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    weight_map = load_json_object(folder / INDEX_FILE, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{INDEX_FILE}: weight_map: expected an object of tensor names to file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        _check_plain_name(name)
    shards = tuple(_read_shard(folder, name) for name in names)
    held = {tensor: shard.path.name for shard in shards for tensor in shard.tensors}
    for tensor, name in weight_map.items():
        if held.get(tensor) != name:
            where = f"it is in {held[tensor]}" if tensor in held else "no shard holds it"
            raise CheckpointError(f"{INDEX_FILE}: expected tensor {tensor} in {name}, but {where}")
    unlisted = sorted(set(held) - set(weight_map))
    if unlisted:
        raise CheckpointError(f"{held[unlisted[0]]} holds the tensor {unlisted[0]}, which {INDEX_FILE} does not list")
    return shards


def _check_plain_name(name: str) -> None:
    if Path(name).name != name or "\\" in name or name in {"", ".", ".."} or not name.endswith(".safetensors"):
        raise CheckpointError(
            f"{INDEX_FILE}: expected .safetensors files in the checkpoint's own folder, found {name!r}: refused"
        )


def _read_shard(folder: Path, name: str) -> SafetensorsFile:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{folder}: the shard {name} is missing: fetch the checkpoint again")
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if start == LFS_POINTER:
        raise CheckpointError(f"{name} is a Git LFS pointer, not the weights: run `git lfs pull` in the checkpoint")
    return read_safetensors(path)
