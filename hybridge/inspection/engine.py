"""Inspect a TensorRT engine: the record made when it was built, and TensorRT's own view where a GPU is present."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridge.artifact.config import MTP_MODEL_FILE
from hybridge.artifact.engine_record import ENGINE_FILE, HEAD_FOLDER, AdvanceRecord, EngineRecord, read_engine_record
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.limits import ONNX_BYTES
from hybridge.artifact.manifest import sha256_of
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.untrusted_file import has_file, open_inside, read_inside, size_of
from hybridge.inspection.engine_inspector import inspector_view
from hybridge.runtime.engines.tensorrt.dense_memory_plan import DenseMemoryPlan, dense_memory_plan
from hybridge.runtime.engines.tensorrt.paged.memory_plan import MemoryPlan, memory_plan

_REMEDY = "build it again"


@dataclass(frozen=True)
class EngineInspection:
    """An engine. ``matches_model``: built from the artifact around it as it is now (None: there is none around it).

    memory: what it needs of the device. head, head_memory: record and memory of the engine of a prediction head built
    beside it; None if there is none. ``inspector`` is what TensorRT's engine inspector tells;
    without a usable GPU it is None and ``inspector_reason`` says why.
    """

    path: str
    record: EngineRecord
    matches_model: bool | None
    memory: MemoryPlan | DenseMemoryPlan
    inspector: dict[str, Any] | None
    inspector_reason: str | None
    head: EngineRecord | None = None
    head_memory: MemoryPlan | None = None

    kind = "engine"

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the kind."""
        return {"kind": self.kind, **asdict(self)}


def inspect_engine(folder: Path, check: bool = False) -> EngineInspection:
    """Inspect the engine in ``folder``; ArtifactError when it or its record is missing or damaged.

    check: compare the hashes of its files too.
    """
    record = read_engine_record(folder / ENGINE_FILE)
    parts: list[EngineRecord | AdvanceRecord] = [record] if record.advance is None else [record, record.advance]
    for part in parts:
        _check_file(folder, part.engine, part.nbytes, part.sha256 if check else None)
    head = None
    if has_file(folder / HEAD_FOLDER, ENGINE_FILE):
        head = read_engine_record(folder / HEAD_FOLDER / ENGINE_FILE)
        _check_file(folder / HEAD_FOLDER, head.engine, head.nbytes, head.sha256 if check else None)
    engine = folder / record.engine
    view = inspector_view(engine, record.library)
    inspector, reason = (None, view) if isinstance(view, str) else (view, None)
    memory = memory_plan(record) if record.row_buckets else dense_memory_plan(record)
    head_memory = None if head is None else memory_plan(head)
    matches = _matches_model(folder, record)
    return EngineInspection(str(folder), record, matches, memory, inspector, reason, head, head_memory)


def _check_file(folder: Path, name: str, nbytes: int, sha256: str | None) -> None:
    """ArtifactError unless ``folder`` has a file ``name`` of ``nbytes`` bytes, and of that hash where one is given."""
    with open_inside(folder, name, None, remedy=_REMEDY) as file:
        if (size := size_of(file)) != nbytes:
            raise ArtifactError(f"{folder / name}: expected {nbytes} bytes, found {size}: {_REMEDY}")
        if sha256 is not None and sha256_of(file) != sha256:
            raise ArtifactError(f"{folder / name}: its content changed since the build: {_REMEDY}")


def _matches_model(folder: Path, record: EngineRecord) -> bool | None:
    """Engines are in OUT/engines/<target>/ of the artifact OUT, those of prediction heads in a folder of that."""
    place, model = folder.resolve(), MODEL_FILE
    if place.name == HEAD_FOLDER and has_file(place.parent, ENGINE_FILE):
        place, model = place.parent, MTP_MODEL_FILE
    artifact = place.parent.parent
    if not has_file(artifact, model):
        return None
    return hashlib.sha256(read_inside(artifact, model, ONNX_BYTES)).hexdigest() == record.model_sha256
