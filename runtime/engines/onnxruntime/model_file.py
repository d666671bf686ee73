"""The graph of an artifact as this engine rewrites it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines import artifact_graph
from hybridge.runtime.engines.onnxruntime.joined_weights import join_weights


def read_model(folder: Path, file: str = MODEL_FILE) -> ir.Model:
    """The graph in ``folder``, weights by reference, those in parts joined; ArtifactError when it cannot be read."""
    model = artifact_graph.read_model(folder, file)
    join_weights(model)
    return model
