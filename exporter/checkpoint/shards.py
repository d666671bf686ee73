"""Which safetensors files make up a checkpoint, and which tensors they hold.

File names in an index are plain names in the checkpoint's own folder; a name with a path separator is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot, read_safetensors
from hybridge.exporter.checkpoint.entries import checked_file, read_json
from hybridge.exporter.checkpoint.torch_file import TORCH_FILE, read_torch_file

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


def read_shards(folder: Path, torch_file: bool = False) -> tuple[SafetensorsFile, ...]:
    """The headers of all shards of the checkpoint in ``folder``; with ``torch_file`` also of a PyTorch file alone.

    CheckpointError: no safetensors, a missing or unsafe one, or an index that disagrees with its shards.
    UnsupportedError: element types of quantised weights, or the layout of another framework.
    """
    index = read_json(folder, INDEX_FILE)
    single = checked_file(folder, SINGLE_FILE)
    if index is not None:
        return _indexed_shards(folder, index, single is not None)
    if single is not None:
        return (_read_shard(folder, SINGLE_FILE),)
    if torch_file and (path := checked_file(folder, TORCH_FILE)) is not None:
        return (read_torch_file(path),)
    raise _no_weights(folder)


def tensors_of(shards: tuple[SafetensorsFile, ...]) -> Mapping[str, TensorSlot]:
    """All tensors by name; CheckpointError when two shards hold the same name."""
    tensors: dict[str, TensorSlot] = {}
    for shard in shards:
        for name, slot in shard.tensors.items():
            if name in tensors:
                raise CheckpointError(f"tensor {name} is in both {tensors[name].path.name} and {shard.path.name}")
            tensors[name] = slot
    return tensors


def _indexed_shards(folder: Path, index: dict[str, Any], has_single: bool) -> tuple[SafetensorsFile, ...]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{INDEX_FILE}: weight_map: expected an object of tensor names to file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        _check_plain_name(name)
    if has_single and SINGLE_FILE not in names:
        raise CheckpointError(f"expected {SINGLE_FILE} or {INDEX_FILE}, found both: remove the one that is out of date")
    shards = tuple(_read_shard(folder, name) for name in names)
    stored = {name: slot.path.name for name, slot in tensors_of(shards).items()}
    for tensor, name in weight_map.items():
        if stored.get(tensor) != name:
            where = f"it is in {stored[tensor]}" if tensor in stored else "no shard holds it"
            raise CheckpointError(f"{INDEX_FILE}: expected tensor {tensor} in {name}, but {where}")
    unlisted = sorted(set(stored) - set(weight_map))
    if unlisted:
        raise CheckpointError(f"{stored[unlisted[0]]} holds the tensor {unlisted[0]}, which {INDEX_FILE} does not list")
    return shards


def _check_plain_name(name: str) -> None:
    if not name.endswith(".safetensors") or set(name) & set("/\\\0"):
        raise CheckpointError(
            f"{INDEX_FILE}: expected .safetensors files in the checkpoint's own folder, found {name!r}: refused"
        )


def _read_shard(folder: Path, name: str) -> SafetensorsFile:
    path = checked_file(folder, name)
    if path is None:
        raise CheckpointError(f"{folder}: the shard {name} is missing: fetch the checkpoint again")
    try:
        shard = read_safetensors(path)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}: export the original checkpoint, not a quantised or packed one") from error
    framework = shard.metadata.get("format", "pt")
    if framework != "pt":
        raise UnsupportedError(
            f"{name}: expected PyTorch's layout, found the format {framework!r}: use the original checkpoint"
        )
    return shard


def _no_weights(folder: Path) -> CheckpointError:
    others = sorted(p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".gguf"})
    if others:
        return CheckpointError(
            f"{folder}: expected {SINGLE_FILE}, found {others[0]}: convert it with transformers' save_pretrained"
        )
    if shards := sorted(p.name for p in folder.glob("*.safetensors")):
        return CheckpointError(
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, found only {shards[0]}: fetch the missing file"
        )
    return CheckpointError(
        f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, found neither: fetch the checkpoint again"
    )
