"""Bring a checkpoint's shards into the artifact's weights folder without copying them where that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hybridge.artifact.errors import CheckpointError, OutputError
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot, has_header_of
from hybridge.artifact.untrusted_file import open_inside
from hybridge.exporter.weights.conversion import convert_torch_file
from hybridge.exporter.weights.file_copy import copy_file, link_file, reflink_file

WEIGHTS_FOLDER = "weights"
DERIVED_FILE = "derived.safetensors"
QUANTIZED_FILE = "quantized.safetensors"
# What a PyTorch file becomes.
CONVERTED_FILE = "model.safetensors"
AUTO, REFLINK, LINK, COPY = "auto", "reflink", "link", "copy"
MODES = (AUTO, REFLINK, LINK, COPY)
_WAYS = {AUTO: (reflink_file, link_file), REFLINK: (reflink_file,), LINK: (link_file,), COPY: ()}


def place_shards(shards: tuple[SafetensorsFile, ...], folder: Path, mode: str) -> Mapping[str, TensorSlot]:
    """Bring every shard into ``folder``/weights; all tensors at their new place.

    mode: "reflink" shares blocks, "link" makes hard links, "copy" copies, and "auto" takes the first of these that the
    file system can do. What is shared is the file behind a symbolic link, so that the artifact outlives a download
    cache's folder of links. A PyTorch file is written as safetensors, whatever the mode. CheckpointError: a shard has
    the name of the artifact's own file, or changed since it was opened. OutputError: the file system cannot do what
    ``mode`` asks for. OSError: the disk is full or not writable.
    """
    target = folder / WEIGHTS_FOLDER
    target.mkdir(exist_ok=True)
    tensors: dict[str, TensorSlot] = {}
    for shard in shards:
        if shard.path.name in (DERIVED_FILE, QUANTIZED_FILE):
            raise CheckpointError(
                f"the checkpoint's shard {shard.path.name} has the name of the artifact's own: rename it"
            )
        if shard.path.suffix == ".bin":
            tensors |= convert_torch_file(shard, target / CONVERTED_FILE)
            continue
        placed = target / shard.path.name
        with open_inside(shard.path.parent, shard.path.name, None, CheckpointError, "export again") as source:
            if not any(share(source, shard.path.resolve(), placed) for share in _WAYS[mode]):
                if mode in (REFLINK, LINK):
                    raise OutputError(
                        f"{shard.path}: expected a file system on which a {mode} from the artifact is possible, found "
                        f"one without it, or another one: take `weights={AUTO!r}`"
                    )
                copy_file(source, placed)
        # Read again: another file may have taken its name since, also one of equal size.
        if not has_header_of(placed, folder, shard):
            raise CheckpointError(f"{shard.path}: changed while it was read: export again")
        for name, slot in shard.tensors.items():
            tensors[name] = replace(slot, path=placed)
    return tensors
