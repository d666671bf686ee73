"""Notices that an artifact was replaced while an engine has it open.

Sessions for further forms of a step are created at first use and read model.onnx again. After a new export to the same
folder, they would mix the new graph with the old weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hybridge.artifact.config import CONFIG_FILE
from hybridge.artifact.errors import ArtifactError, EngineError
from hybridge.artifact.limits import JSON_BYTES, ONNX_BYTES
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.untrusted_file import read_inside


class OpenedGraph:
    """The graph ``file`` and the config.json of ``folder`` as they are when this object is made."""

    def __init__(self, folder: Path, file: str = MODEL_FILE) -> None:
        self._folder, self._file = folder, file
        self._digest = graph_digest(folder, file)

    def check(self) -> None:
        """EngineError when one of the files has changed."""
        if graph_digest(self._folder, self._file) != self._digest:
            raise EngineError(
                f"{self._folder}: expected the artifact that was opened, found that {self._file} or {CONFIG_FILE} was "
                "replaced: open it again"
            )


def graph_digest(folder: Path, file: str = MODEL_FILE) -> str | None:
    """sha256 over the graph ``file`` and config.json; None where one of them cannot be read."""
    digest = hashlib.sha256()
    try:
        for name, most in ((file, ONNX_BYTES), (CONFIG_FILE, JSON_BYTES)):
            digest.update(hashlib.sha256(read_inside(folder, name, most)).digest())
    except (OSError, ArtifactError):
        return None
    return digest.hexdigest()
