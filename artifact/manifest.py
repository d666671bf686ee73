"""manifest.json: where an artifact came from, and hashes by which a damaged or foreign file is noticed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from artifact.errors import ArtifactError
from artifact.json_fields import Fields, load_json_object

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
_CHUNK = 1 << 22


@dataclass(frozen=True)
class FileRecord:
    """One file of the artifact. ``scope`` is "full" (sha256 of all bytes) or "header" (safetensors header only)."""

    path: str
    nbytes: int
    sha256: str
    scope: str = "full"


@dataclass(frozen=True)
class Manifest:
    """Versions of the tools, the source checkpoint, the export's arguments and the files."""

    versions: dict[str, str]
    checkpoint: str
    arguments: dict[str, Any]
    files: tuple[FileRecord, ...]
    notes: tuple[str, ...] = ()
    manifest_version: int = field(default=MANIFEST_VERSION)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``folder``/manifest.json."""
    (folder / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read ``folder``/manifest.json; ArtifactError when it is missing or malformed."""
    f = Fields(load_json_object(folder / MANIFEST_FILE), str(folder / MANIFEST_FILE))
    version = f.integer("manifest_version")
    if version != MANIFEST_VERSION:
        raise f.fail("manifest_version", f"{MANIFEST_VERSION} (export the checkpoint again)")
    manifest = Manifest(
        f.object("versions"),
        f.string("checkpoint"),
        f.object("arguments"),
        f.map("files", _record_from_json),
        tuple(f.array("notes")),
    )
    f.refuse_unknown()
    return manifest


def _record_from_json(f: Fields) -> FileRecord:
    record = FileRecord(
        f.string("path"), f.integer("nbytes", minimum=0), f.string("sha256"), f.choice("scope", ("full", "header"))
    )
    f.refuse_unknown()
    return record


def record_file(folder: Path, relative: str, header_bytes: int | None = None) -> FileRecord:
    """Hash ``folder``/``relative``: all of it, or only its first ``header_bytes`` bytes (a safetensors header)."""
    path = folder / relative
    digest = _sha256(path, header_bytes)
    return FileRecord(relative, path.stat().st_size, digest, "full" if header_bytes is None else "header")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise ArtifactError naming the first file that is missing, resized or changed since the export."""
    for record in manifest.files:
        path = folder / record.path
        if Path(record.path).is_absolute() or ".." in Path(record.path).parts:
            raise ArtifactError(f"{folder / MANIFEST_FILE}: {record.path!r} leaves the artifact: refused")
        if not path.is_file():
            raise ArtifactError(f"{folder}: expected the file {record.path}, found none: export again")
        try:
            _check_file(path, record)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_file(path: Path, record: FileRecord) -> None:
    size = path.stat().st_size
    if size != record.nbytes:
        raise ArtifactError(f"{path}: expected {record.nbytes} bytes, found {size}: export again")
    header = None if record.scope == "full" else _header_length(path)
    if _sha256(path, header) != record.sha256:
        raise ArtifactError(f"{path}: its content changed since the export: export again")


def _header_length(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _sha256(path: Path, limit: int | None) -> str:
    digest = hashlib.sha256()
    remaining = path.stat().st_size if limit is None else limit
    with path.open("rb") as file:
        while remaining > 0 and (chunk := file.read(min(_CHUNK, remaining))):
            digest.update(chunk)
            remaining -= len(chunk)
    return digest.hexdigest()
