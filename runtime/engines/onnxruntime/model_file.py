"""The graph of an artifact."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from artifact.errors import ArtifactError
from runtime.engines.onnxruntime.joined_weights import join_weights

MODEL_FILE = "model.onnx"


def read_model(folder: Path, file: str = MODEL_FILE) -> ir.Model:
    """The graph in ``folder``, weights by reference, those in parts joined; ArtifactError when it cannot be read."""
    path = folder / file
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise several kinds
        raise ArtifactError(f"{path}: expected an ONNX model ({error}): export the checkpoint again") from error
    join_weights(model)
    return model
