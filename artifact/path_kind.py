"""The kind of a given path, and the error message for a path of the wrong kind."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from hybridge.artifact.config import CONFIG_FILE
from hybridge.artifact.engine_record import ENGINE_FILE
from hybridge.artifact.errors import ArtifactError, CheckpointError, HybridgeError
from hybridge.artifact.json_fields import load_json_object
from hybridge.artifact.manifest import MANIFEST_FILE

MODEL_FILE = "model.onnx"
# (file, field): JSON objects that distinguish a folder written by Hybridge from one with files of these names.
ARTIFACT_MARKS = ((MANIFEST_FILE, "manifest_version"), (CONFIG_FILE, "bindings"))
ENGINE_MARKS = ((ENGINE_FILE, "engine_version"),)


class PathKind(str, Enum):
    """The value is how a sentence calls it."""

    ARTIFACT = "a folder written by hybridge export"
    CHECKPOINT = "a checkpoint"
    ENGINE = "a TensorRT engine"
    MODEL = "the ONNX file of an exported folder"
    FOLDER = "another folder"
    FILE = "a file"
    NOTHING = "nothing"


def kind_of_path(path: Path) -> PathKind:
    """Look at names and marks only: what is damaged inside is for its reader to say."""
    if path.is_dir():
        return _kind_of_folder(path)
    if not path.exists():
        return PathKind.NOTHING
    if path.name == ENGINE_FILE or path.suffix == ".engine":
        return PathKind.ENGINE
    return PathKind.MODEL if path.suffix == ".onnx" else PathKind.FILE


def require_artifact(path: Path) -> None:
    """ArtifactError, which tells what ``path`` is and which command takes it, unless it is an artifact."""
    kind = kind_of_path(path)
    if kind is PathKind.ARTIFACT:
        return
    found, remedy = kind.value, "give such a folder"
    if kind is PathKind.CHECKPOINT:
        remedy = f"run hybridge export {path} OUT and give OUT"
    elif kind is PathKind.NOTHING:
        remedy = "check the path, or write it with hybridge export CHECKPOINT OUT"
    elif (around := _artifact_around(path)) is not None:
        found = kind.value if kind in (PathKind.ENGINE, PathKind.MODEL) else f"{kind.value} inside one"
        remedy = f"give {around}"
    if kind is PathKind.ENGINE:
        remedy += f" (hybridge inspect {path} shows what the engine holds)"
    raise ArtifactError(f"{path}: expected {PathKind.ARTIFACT.value}, found {found}: {remedy}")


def require_checkpoint(path: Path) -> None:
    """CheckpointError, which tells what ``path`` is, unless it is a folder that may be a checkpoint."""
    kind = kind_of_path(path)
    if kind in (PathKind.CHECKPOINT, PathKind.FOLDER):
        return
    remedy = "give the folder of a Hugging Face checkpoint"
    if kind is PathKind.NOTHING:
        remedy = "download the checkpoint and give its folder"
    elif kind is PathKind.ARTIFACT:
        remedy = "give the checkpoint that it was exported from"
    elif kind is PathKind.FILE:
        remedy = "give the folder that holds it"
    raise CheckpointError(f"{path}: expected a checkpoint folder, found {kind.value}: {remedy}")


def is_marked(folder: Path, marks: Iterable[tuple[str, str]]) -> bool:
    """True when one of the files of ``marks`` in ``folder`` is a JSON object with its field."""
    return any(field in _json_or_empty(folder / name) for name, field in marks)


def _kind_of_folder(folder: Path) -> PathKind:
    if (folder / ENGINE_FILE).is_file():
        return PathKind.ENGINE
    if is_marked(folder, ARTIFACT_MARKS):
        return PathKind.ARTIFACT
    if (folder / CONFIG_FILE).is_file() or any(folder.glob("*.safetensors")):
        return PathKind.CHECKPOINT
    return PathKind.FOLDER


def _artifact_around(path: Path) -> Path | None:
    """The artifact that holds ``path``, searched no deeper than an engine's files are."""
    parents = list(path.parents)[:3]
    return next((p for p in parents if p.is_dir() and _kind_of_folder(p) is PathKind.ARTIFACT), None)


def _json_or_empty(path: Path) -> dict[str, Any]:
    try:
        return load_json_object(path)
    except HybridgeError:
        return {}
