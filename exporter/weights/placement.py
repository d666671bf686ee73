"""Bring the checkpoint's shards into the artifact without reading or writing weights where the disk allows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from artifact.errors import CheckpointError, OutputError, UnsupportedError
from artifact.manifest import FileRecord, record_file
from artifact.progress import NoProgress, Progress
from artifact.safetensors_file import TensorSlot, read_safetensors
from exporter.weights.derived import DERIVED_FILE
from exporter.weights.file_copy import clone_file, copy_file, link_file

WEIGHTS_FOLDER = "weights"


@dataclass(frozen=True)
class PlacedFile:
    """One shard in the artifact. ``how``: "reflink" (shares blocks), "link" (shares the file) or "copy"."""

    path: Path
    nbytes: int
    how: str


@dataclass(frozen=True)
class PlacedWeights:
    """The slots by tensor name, now with paths in the artifact, and the files they lie in."""

    tensors: Mapping[str, TensorSlot]
    files: tuple[PlacedFile, ...]


def place_weights(
    slots: Iterable[TensorSlot], out: Path, mode: str = "link", progress: Progress | None = None
) -> PlacedWeights:
    """Put the files that ``slots`` lie in under ``out``/weights, with their names.

    ``mode`` "link" shares the bytes: by reflink, else by hard link, else (another file system) it copies; "copy"
    never makes a hard link, so that the checkpoint may be changed later. A symbolic link is followed first.
    CheckpointError: two files of one name, a name that the artifact uses itself, or a checkpoint that changed
    since it was opened. OSError: the disk is full or not writable.
    """
    if mode not in ("link", "copy"):
        raise UnsupportedError(f"--weights: expected link or copy, found {mode}")
    progress = progress or NoProgress()
    slots = tuple(slots)
    sources = _sources(slots)
    folder = out / WEIGHTS_FOLDER
    folder.mkdir(exist_ok=True)
    progress.start("placing weights", sum(path.stat().st_size for path in sources.values()), "B")
    files = tuple(_place(path, folder / name, mode, progress) for name, path in sources.items())
    moved = {slot.name: dataclasses.replace(slot, path=folder / slot.path.name) for slot in slots}
    _check_sizes(moved.values(), files)
    return PlacedWeights(MappingProxyType(moved), files)


def weight_records(out: Path, full_hash: bool = False) -> tuple[FileRecord, ...]:
    """Manifest records of all files in ``out``/weights: hashes of their headers, or with ``full_hash`` of all bytes."""
    records = []
    for path in sorted((out / WEIGHTS_FOLDER).glob("*.safetensors")):
        header = None if full_hash else read_safetensors(path).data_start
        records.append(record_file(out, f"{WEIGHTS_FOLDER}/{path.name}", header))
    return tuple(records)


def _sources(slots: Iterable[TensorSlot]) -> dict[str, Path]:
    sources: dict[str, Path] = {}
    for slot in slots:
        name = slot.path.name
        if name == DERIVED_FILE:
            raise CheckpointError(f"{name}: the artifact needs this file name for itself: rename the checkpoint's file")
        if sources.setdefault(name, slot.path) != slot.path:
            raise CheckpointError(f"{name}: two files of this name, in {sources[name].parent} and {slot.path.parent}")
    return dict(sorted(sources.items()))


def _place(source: Path, target: Path, mode: str, progress: Progress) -> PlacedFile:
    nbytes = source.stat().st_size
    if target.exists():
        raise OutputError(f"{target}: exists already: give an empty folder")
    how = "copy"
    if mode == "link":
        how = "reflink" if clone_file(source, target) else "link" if link_file(source, target) else "copy"
    if how == "copy":
        copy_file(source, target, progress.advance)
    else:
        progress.advance(nbytes)
    return PlacedFile(target, nbytes, how)


def _check_sizes(slots: Iterable[TensorSlot], files: tuple[PlacedFile, ...]) -> None:
    sizes = {file.path: file.path.stat().st_size for file in files}
    for slot in slots:
        if slot.offset + slot.nbytes > sizes[slot.path]:
            raise CheckpointError(f"{slot.path.name}: tensor {slot.name} is gone: the checkpoint changed: export again")
