"""onnx.checker over the graphs of an artifact, whatever its weight files are."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hybridge.artifact.config import MTP_MODEL_FILE
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.onnx_file import check_stored_weights, read_onnx, stored_weights
from hybridge.artifact.path_kind import MODEL_FILE, require_artifact
from hybridge.artifact.untrusted_file import has_file, open_inside, size_of


def check_onnx(folder: Path) -> tuple[str, ...]:
    """Check model.onnx, and mtp.onnx where there is one; the names of the files that were checked.

    The checker refuses weight files with several hard links. It asks for their sizes only, so that it sees the graph
    beside empty (sparse) files of these sizes; that the real ones hold every weight is checked here. ArtifactError
    says what is wrong.
    """
    require_artifact(folder)
    files = [file for file in (MODEL_FILE, MTP_MODEL_FILE) if has_file(folder, file)]
    for file in files:
        _check(folder, file)
    return tuple(files)


def _check(folder: Path, file: str) -> None:
    from onnx import checker

    found = read_onnx(folder, file)
    check_stored_weights(folder, found.model, file)
    locations = {weight.location for weight in stored_weights(found.model, str(folder / file))}
    with tempfile.TemporaryDirectory() as temporary:
        view = Path(temporary)
        (view / file).write_bytes(found.raw)
        for location in locations:
            (view / location).parent.mkdir(parents=True, exist_ok=True)
            with open_inside(folder, location, None) as real, (view / location).open("xb") as sparse:
                sparse.truncate(size_of(real))
        try:
            checker.check_model(view / file)
        except checker.ValidationError as error:
            raise ArtifactError(
                f"{folder / file}: onnx.checker refuses it ({error}): export the checkpoint again"
            ) from error
