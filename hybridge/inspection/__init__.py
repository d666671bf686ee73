"""What a checkpoint, an artifact or an engine holds. Needs no torch; nothing is loaded but headers and the graph."""

from hybridge.inspection.artifact import ArtifactInspection
from hybridge.inspection.checkpoint import CheckpointInspection
from hybridge.inspection.engine import EngineInspection
from hybridge.inspection.path import Inspection, inspect_path

__all__ = ["ArtifactInspection", "CheckpointInspection", "EngineInspection", "Inspection", "inspect_path"]
