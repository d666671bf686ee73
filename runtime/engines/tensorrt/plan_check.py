"""Loading the engine file, and telling a damaged one from one that TensorRT refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.artifact.manifest import sha256_of
from hybridge.artifact.untrusted_file import has_file, open_inside, size_of
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine


def load_plan(library: RuntimeLibrary, built: BuiltEngine, part: EngineRecord | AdvanceRecord | None = None) -> Any:
    """The engine (trt.ICudaEngine) of ``built``; ``part``: the record of its file that is meant, by default the first.

    EngineError: the file is missing, damaged, or refused by the library. The whole file is hashed only after a
    failure: reading gigabytes twice would delay every start.
    """
    record = part or built.record
    path = built.folder / record.engine
    found = None
    if has_file(path.parent, path.name):
        with _opened(path) as file:
            found = size_of(file)
    if found != record.nbytes or not record.nbytes:
        size = "none" if found is None else f"{found} bytes"
        raise EngineError(f"{path}: expected an engine of {record.nbytes} bytes, found {size}: {built.build_again}")
    try:
        return library.load(path)
    except EngineError as error:
        with _opened(path) as file:
            whole = sha256_of(file) == record.sha256
        if not whole:
            raise EngineError(
                f"{path}: the file is damaged, its bytes are not those that engine.json describes: {built.build_again}"
            ) from error
        raise EngineError(f"{error}: {built.build_again}") from error


def _opened(path: Path) -> BinaryIO:
    return open_inside(path.parent, path.name, None, EngineError, "build it again")
