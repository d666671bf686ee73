"""Find out what a path is, and inspect it."""

from __future__ import annotations

from pathlib import Path

from artifact.config import CONFIG_FILE
from artifact.engine_record import ENGINE_FILE
from artifact.errors import ArtifactError
from artifact.json_fields import load_json_object
from artifact.manifest import MANIFEST_FILE
from hybridge.inspection.artifact import ArtifactInspection, inspect_artifact
from hybridge.inspection.checkpoint import CheckpointInspection, inspect_checkpoint
from hybridge.inspection.engine import EngineInspection, inspect_engine

Inspection = CheckpointInspection | ArtifactInspection | EngineInspection


def inspect_path(path: Path) -> Inspection:
    """Inspect a checkpoint folder, an artifact folder (or its model.onnx), or an engine (folder or file).

    ArtifactError: ``path`` is none of them. Other errors say how what it is, is damaged.
    """
    if path.name == ENGINE_FILE or path.suffix == ".engine":
        return inspect_engine(path.parent)
    if path.suffix == ".onnx":
        return inspect_artifact(path.parent)
    if path.is_dir():
        if (path / ENGINE_FILE).is_file():
            return inspect_engine(path)
        if _is_artifact(path):
            return inspect_artifact(path)
        if (path / CONFIG_FILE).is_file() or any(path.glob("*.safetensors")):
            return inspect_checkpoint(path)
    found = "a folder with neither" if path.is_dir() else "a file" if path.exists() else "nothing"
    raise ArtifactError(
        f"{path}: expected a checkpoint folder (config.json, *.safetensors), a folder written by hybridge export or "
        f"an engine ({ENGINE_FILE}), found {found}"
    )


def _is_artifact(folder: Path) -> bool:
    if (folder / MANIFEST_FILE).is_file():
        return True
    config = folder / CONFIG_FILE
    return config.is_file() and "bindings" in load_json_object(config)
