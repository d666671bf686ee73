"""engine.json: what a built engine holds, recorded at build time because a GPU-less machine cannot inspect one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.json_fields import Fields, is_count, load_json_object
from hybridge.artifact.limits import POSITIONS, ROWS, TENSOR_AXES

ENGINE_FILE = "engine.json"
# Folder of an artifact with its built engines, each in a folder of its own.
ENGINES_FOLDER = "engines"
ENGINE_VERSION = 3
# Folder of an engine with the engine of the model's prediction head.
HEAD_FOLDER = "mtp"
# The Python modules that may build and load an engine: no other name in an engine.json is imported.
TENSORRT_LIBRARIES = ("tensorrt", "tensorrt_rtx")


@dataclass(frozen=True)
class ProfileRecord:
    """One optimization profile: per input name the (min, opt, max) shapes."""

    name: str
    shapes: dict[str, list[list[int]]]


@dataclass(frozen=True)
class PluginsRecord:
    """The project's plugins in an engine; truthy if there are any.

    namespace, version: where TensorRT looks them up. ops: operator -> number of its layers; if there are none,
    reason says why. aliased: they update states in place (the outputs' ``aliases``), else states need two buffers.
    """

    namespace: str
    version: str
    ops: dict[str, int]
    aliased: bool
    reason: str

    def __bool__(self) -> bool:
        return bool(self.ops)


@dataclass(frozen=True)
class AdvanceRecord:
    """The second file of an engine with replay: it advances the states by the accepted draft tokens.

    Its bindings are the row inputs, the operator inputs that the first engine stored ("stored_..."), and the pools.
    scratch_bytes: as in EngineRecord.
    """

    engine: str
    nbytes: int
    sha256: str
    profiles: list[ProfileRecord]
    bindings: list[dict[str, Any]]
    layers: dict[str, int]
    scratch_bytes: int = 0


@dataclass(frozen=True)
class EngineRecord:
    """One engine file: what built it, what it targets, its profiles, bindings and layers (type -> count).

    scratch_bytes: device memory of a context. row_buckets: of a paged engine, the numbers of rows whose decode steps
    are captured, ascending. speculative_tokens: draft tokens that a row may have in a step. advance: with
    ``--draft-states replay``, else None.
    """

    engine: str
    nbytes: int
    sha256: str
    library: str
    library_version: str
    preset: str
    compute_capabilities: list[str]
    plugins: PluginsRecord
    max_batch_size: int
    max_seq_len: int
    profiles: list[ProfileRecord]
    bindings: list[dict[str, Any]]
    layers: dict[str, int]
    model_sha256: str
    build_seconds: float
    scratch_bytes: int = 0
    row_buckets: list[int] = field(default_factory=list)
    speculative_tokens: int = 0
    advance: AdvanceRecord | None = None
    engine_version: int = ENGINE_VERSION


def write_engine_record(path: Path, record: EngineRecord) -> None:
    """Write ``record`` as JSON to ``path``."""
    path.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def read_engine_record(path: Path) -> EngineRecord:
    """Read an engine.json; ArtifactError when it is missing, malformed or of another version."""
    data = load_json_object(path)
    f = Fields(data, str(path))
    version = f.integer("engine_version")
    if version != ENGINE_VERSION:
        raise ArtifactError(f"{path}: expected engine_version {ENGINE_VERSION}, found {version}: build it again")
    record = EngineRecord(
        engine=_file_name(f),
        nbytes=f.integer("nbytes", minimum=0),
        sha256=f.string("sha256"),
        library=f.choice("library", TENSORRT_LIBRARIES),
        library_version=f.string("library_version"),
        preset=f.string("preset"),
        compute_capabilities=f.strings("compute_capabilities"),
        plugins=_plugins(f.fields("plugins")),
        max_batch_size=f.integer("max_batch_size", minimum=1, maximum=ROWS),
        max_seq_len=f.integer("max_seq_len", minimum=1, maximum=POSITIONS),
        profiles=_profiles(f),
        bindings=list(f.map("bindings", _binding)),
        layers=_counts(f, "layers"),
        model_sha256=f.string("model_sha256"),
        build_seconds=f.number("build_seconds"),
        scratch_bytes=f.integer("scratch_bytes", minimum=0),
        row_buckets=_row_buckets(f),
        speculative_tokens=f.integer("speculative_tokens", minimum=0),
        advance=None if f.object("advance", None) is None else _advance(f.fields("advance")),
    )
    f.refuse_unknown()
    return record


def _profiles(f: Fields) -> list[ProfileRecord]:
    return list(f.map("profiles", _profile))


def _profile(f: Fields) -> ProfileRecord:
    shapes = f.object("shapes")
    if not all(_is_range(shape) for shape in shapes.values()):
        raise f.fail("shapes", "a minimum, an optimum and a maximum shape for each input")
    return ProfileRecord(f.string("name"), shapes)


def _is_range(shapes: object) -> bool:
    return (
        isinstance(shapes, list)
        and len(shapes) == 3
        and all(isinstance(shape, list) and all(map(is_count, shape)) for shape in shapes)
    )


def _binding(f: Fields) -> dict[str, Any]:
    """The binding's JSON object, after its fields have been checked."""
    shape = f.array("shape")
    if len(shape) > TENSOR_AXES or not all(isinstance(size, str) or is_count(size) for size in shape):
        raise f.fail("shape", f"at most {TENSOR_AXES} sizes and axis names")
    entry = {
        "name": f.string("name"),
        "mode": f.choice("mode", ("input", "output")),
        "dtype": f.string("dtype"),
        "shape": shape,
    }
    names = {key: f.string(key, None) for key in ("replaced_by", "aliases")}
    f.refuse_unknown()
    return {**entry, **{key: name for key, name in names.items() if name is not None}}


def _file_name(f: Fields) -> str:
    """The name of a file beside engine.json."""
    name: str = f.string("engine")
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise f.fail("engine", "the name of a file beside it")
    return name


def _counts(f: Fields, key: str) -> dict[str, int]:
    """An object that maps names to counts."""
    counts: dict[str, int] = f.object(key)
    if not all(map(is_count, counts.values())):
        raise f.fail(key, "an object of counts")
    return counts


def _advance(f: Fields) -> AdvanceRecord:
    record = AdvanceRecord(
        engine=_file_name(f),
        nbytes=f.integer("nbytes", minimum=0),
        sha256=f.string("sha256"),
        profiles=_profiles(f),
        bindings=list(f.map("bindings", _binding)),
        layers=_counts(f, "layers"),
        scratch_bytes=f.integer("scratch_bytes", minimum=0),
    )
    f.refuse_unknown()
    return record


def _row_buckets(f: Fields) -> list[int]:
    buckets = f.array("row_buckets")
    if not all(map(is_count, buckets)) or buckets != sorted({*buckets, 0})[1:]:
        raise f.fail("row_buckets", "ascending numbers of rows")
    return list(buckets)


def _plugins(f: Fields) -> PluginsRecord:
    record = PluginsRecord(
        namespace=f.string("namespace"),
        version=f.string("version"),
        ops=_counts(f, "ops"),
        aliased=f.boolean("aliased"),
        reason=f.string("reason"),
    )
    f.refuse_unknown()
    return record
