"""The graph of an artifact as this engine rewrites it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines import artifact_graph
from hybridge.runtime.engines.onnxruntime.joined_weights import join_weights
from hybridge.runtime.engines.onnxruntime.quantized_weights import read_quantized_weights


def read_model(folder: Path, file: str = MODEL_FILE) -> ir.Model:
    """The graph in ``folder``, weights by reference, those in parts joined; ArtifactError when it cannot be read."""
    model = artifact_graph.read_model(folder, file)
    gather_weights(model)
    return model


def gather_weights(model: ir.Model) -> None:
    """Make every weight that the graph computes from stored tensors one initializer."""
    read_quantized_weights(model)
    join_weights(model)
