"""The graph of an artifact as a model of onnx_ir, and its weights mapped from their files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.mapped_file import map_inside
from hybridge.artifact.onnx_file import check_stored_weights, read_onnx
from hybridge.artifact.path_kind import MODEL_FILE


def read_model(folder: Path, file: str = MODEL_FILE) -> ir.Model:
    """A graph of the artifact in ``folder``, weights by reference.

    ArtifactError: the file is missing or damaged, or a weight is missing, cut or outside of the artifact.
    """
    found = read_onnx(folder, file).model
    check_stored_weights(folder, found, file)
    try:
        model = ir.from_proto(found)
    except Exception as error:  # onnx_ir raises several kinds for a graph that contradicts itself
        raise ArtifactError(
            f"{folder / file}: expected an ONNX model ({error}): export the checkpoint again"
        ) from error
    ir.external_data.set_base_dir(model.graph, folder)
    return model


def mapped_bytes(tensor: ir.ExternalTensor, folder: Path, copy_on_write: bool = False) -> np.ndarray:
    """The bytes [n] of a weight of ``folder``; ArtifactError when its file is missing, cut or outside of it.

    copy_on_write: the array may be written to, the file stays unchanged; else it is read-only.
    """
    nbytes = DType.from_onnx(int(tensor.dtype)).nbytes(math.prod(int(n) for n in tensor.shape.numpy()))
    return map_inside(folder, str(tensor.location), tensor.offset or 0, nbytes, copy_on_write)
