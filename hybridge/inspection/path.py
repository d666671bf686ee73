"""Find out what a path is, and inspect it."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.engine_record import ENGINE_FILE
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.manifest import check_artifact
from hybridge.artifact.path_kind import PathKind, kind_of_path
from hybridge.inspection.artifact import ArtifactInspection, inspect_artifact
from hybridge.inspection.checkpoint import CheckpointInspection, inspect_checkpoint
from hybridge.inspection.engine import EngineInspection, inspect_engine

Inspection = CheckpointInspection | ArtifactInspection | EngineInspection


def inspect_path(path: Path, check: bool = False) -> Inspection:
    """Inspect a checkpoint folder, an artifact folder (or its model.onnx), or an engine (folder or file).

    check: compare hashes first. ArtifactError: ``path`` is none of them, a file is not as it was written, or a
    checkpoint should be checked, which has no hashes. Other errors describe the damage.
    """
    kind = kind_of_path(path)
    if kind is PathKind.ENGINE:
        return inspect_engine(path if path.is_dir() else path.parent, check)
    if kind in (PathKind.MODEL, PathKind.ARTIFACT):
        folder = path if path.is_dir() else path.parent
        if check:
            check_artifact(folder)
        return inspect_artifact(folder)
    if kind is PathKind.CHECKPOINT:
        if check:
            raise ArtifactError(
                f"{path}: expected an artifact or an engine to check, found {kind.value}: export it first"
            )
        return inspect_checkpoint(path)
    raise ArtifactError(
        f"{path}: expected a checkpoint folder (config.json, *.safetensors), a folder written by hybridge export or "
        f"an engine ({ENGINE_FILE}), found {kind.value}: give one of them"
    )
