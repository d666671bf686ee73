"""Bring a checkpoint's shards into the artifact's weights folder without copying them where that is possible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from artifact.errors import CheckpointError
from artifact.safetensors_file import SafetensorsFile, TensorSlot

WEIGHTS_FOLDER = "weights"
DERIVED_FILE = "derived.safetensors"


def place_shards(shards: tuple[SafetensorsFile, ...], folder: Path, mode: str) -> Mapping[str, TensorSlot]:
    """Link (``mode`` "link") or copy ("copy") every shard into ``folder``/weights; all tensors at their new place.

    A link that the file system refuses (another device) becomes a copy. Links go to the file behind a symbolic
    link, so that the artifact outlives a download cache's folder of links.
    """
    target = folder / WEIGHTS_FOLDER
    target.mkdir(exist_ok=True)
    tensors: dict[str, TensorSlot] = {}
    for shard in shards:
        if shard.path.name == DERIVED_FILE:
            raise CheckpointError(
                f"the checkpoint's shard {DERIVED_FILE} has the name of the artifact's own: rename it"
            )
        placed = target / shard.path.name
        source = shard.path.resolve()
        if mode == "copy" or not _linked(source, placed):
            shutil.copyfile(source, placed)
        for name, slot in shard.tensors.items():
            tensors[name] = replace(slot, path=placed)
    return tensors


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
