"""Find out what a path is, and inspect it."""

from __future__ import annotations

from pathlib import Path

from artifact.engine_record import ENGINE_FILE
from artifact.errors import ArtifactError
from artifact.path_kind import PathKind, kind_of_path
from hybridge.inspection.artifact import ArtifactInspection, inspect_artifact
from hybridge.inspection.checkpoint import CheckpointInspection, inspect_checkpoint
from hybridge.inspection.engine import EngineInspection, inspect_engine

Inspection = CheckpointInspection | ArtifactInspection | EngineInspection


def inspect_path(path: Path) -> Inspection:
    """Inspect a checkpoint folder, an artifact folder (or its model.onnx), or an engine (folder or file).

    ArtifactError: ``path`` is none of them. Other errors say how what it is, is damaged.
    """
    kind = kind_of_path(path)
    if kind is PathKind.ENGINE:
        return inspect_engine(path if path.is_dir() else path.parent)
    if kind is PathKind.MODEL:
        return inspect_artifact(path.parent)
    if kind is PathKind.ARTIFACT:
        return inspect_artifact(path)
    if kind is PathKind.CHECKPOINT:
        return inspect_checkpoint(path)
    raise ArtifactError(
        f"{path}: expected a checkpoint folder (config.json, *.safetensors), a folder written by hybridge export or "
        f"an engine ({ENGINE_FILE}), found {kind.value}: give one of them"
    )
