"""Loading the engine file, and telling a damaged one from one that TensorRT refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from artifact.errors import EngineError
from runtime.engines.tensorrt.library import RuntimeLibrary
from runtime.engines.tensorrt.selection import BuiltEngine

_CHUNK = 1 << 24


def load_plan(library: RuntimeLibrary, built: BuiltEngine) -> Any:
    """The engine (trt.ICudaEngine) of ``built``.

    EngineError: the file is missing, damaged, or refused by the library. The whole file is hashed only after a
    failure: reading gigabytes twice would delay every start.
    """
    path, record = built.plan, built.record
    found = path.stat().st_size if path.is_file() else None
    if found != record.nbytes or not record.nbytes:
        size = "none" if found is None else f"{found} bytes"
        raise EngineError(f"{path}: expected an engine of {record.nbytes} bytes, found {size}: {built.build_again}")
    try:
        return library.load(path)
    except EngineError as error:
        if _sha256(path) != record.sha256:
            raise EngineError(
                f"{path}: the file is damaged, its bytes are not those that engine.json describes: {built.build_again}"
            ) from error
        raise EngineError(f"{error}: {built.build_again}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
