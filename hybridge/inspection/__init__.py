"""Contents of a checkpoint, an artifact or an engine. Needs no torch; loads only headers and the graph."""

from hybridge.inspection.artifact import ArtifactInspection
from hybridge.inspection.checkpoint import CheckpointInspection
from hybridge.inspection.engine import EngineInspection
from hybridge.inspection.path import Inspection, inspect_path

__all__ = ["ArtifactInspection", "CheckpointInspection", "EngineInspection", "Inspection", "inspect_path"]
