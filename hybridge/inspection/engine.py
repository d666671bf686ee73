"""Inspect a TensorRT engine: the record made when it was built, and TensorRT's own view where a GPU is present."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifact.engine_record import ENGINE_FILE, EngineRecord, read_engine_record
from artifact.errors import ArtifactError
from hybridge.inspection.engine_inspector import inspector_view

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class EngineInspection:
    """An engine. ``matches_model``: built from the artifact around it as it is now (None: there is none around it).

    ``inspector`` is what TensorRT's engine inspector tells; without a usable GPU it is None and
    ``inspector_reason`` says why.
    """

    path: str
    record: EngineRecord
    matches_model: bool | None
    inspector: dict[str, Any] | None
    inspector_reason: str | None

    kind = "engine"

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the kind."""
        return {"kind": self.kind, **asdict(self)}


def inspect_engine(folder: Path) -> EngineInspection:
    """Inspect the engine in ``folder``; ArtifactError when it or its record is missing or damaged."""
    record = read_engine_record(folder / ENGINE_FILE)
    engine = _file(folder, record.engine, record.nbytes)
    if record.advance is not None:
        _file(folder, record.advance.engine, record.advance.nbytes)
    view = inspector_view(engine, record.library)
    inspector, reason = (None, view) if isinstance(view, str) else (view, None)
    return EngineInspection(str(folder), record, _matches_model(folder, record), inspector, reason)


def _file(folder: Path, name: str, nbytes: int) -> Path:
    """The file ``name`` of ``folder``; ArtifactError unless it is there with ``nbytes`` bytes."""
    file = folder / name
    if Path(name).name != name:
        raise ArtifactError(f"{ENGINE_FILE}: engine: expected a file beside it, found {name!r}: refused")
    if not file.is_file():
        raise ArtifactError(f"{folder}: expected the engine {name}, found none: build it again")
    if file.stat().st_size != nbytes:
        raise ArtifactError(f"{file}: expected {nbytes} bytes, found {file.stat().st_size}: build it again")
    return file


def _matches_model(folder: Path, record: EngineRecord) -> bool | None:
    """Engines lie in OUT/engines/<target>/ of the artifact OUT."""
    model = folder.resolve().parent.parent / MODEL_FILE
    if not model.is_file():
        return None
    return hashlib.sha256(model.read_bytes()).hexdigest() == record.model_sha256
