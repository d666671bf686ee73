"""manifest.json: an artifact's origin, and hashes that detect damaged or replaced files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.json_fields import Fields, load_json_object
from hybridge.artifact.untrusted_file import has_file, open_inside, size_of

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
_CHUNK = 1 << 22
_REMEDY = "export again"


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
        _versions(f),
        f.string("checkpoint"),
        f.object("arguments"),
        f.map("files", _record_from_json),
        tuple(f.strings("notes")),
    )
    f.refuse_unknown()
    return manifest


def _versions(f: Fields) -> dict[str, str]:
    versions: dict[str, str] = f.object("versions")
    if not all(isinstance(version, str) for version in versions.values()):
        raise f.fail("versions", "an object of strings")
    return versions


def _record_from_json(f: Fields) -> FileRecord:
    record = FileRecord(
        f.string("path"), f.integer("nbytes", minimum=0), f.string("sha256"), f.choice("scope", ("full", "header"))
    )
    f.refuse_unknown()
    return record


def record_file(folder: Path, relative: str, header_bytes: int | None = None) -> FileRecord:
    """Hash ``folder``/``relative``: all of it, or only its first ``header_bytes`` bytes (a safetensors header)."""
    with open_inside(folder, relative, None) as file:
        digest = sha256_of(file, header_bytes)
        return FileRecord(relative, size_of(file), digest, "full" if header_bytes is None else "header")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise ArtifactError naming the first file that is missing, resized or changed since the export."""
    for record in manifest.files:
        with open_inside(folder, record.path, None, remedy=_REMEDY) as file:
            try:
                _check_file(file, folder / record.path, record)
            except OSError as error:
                raise ArtifactError(f"{folder / record.path}: cannot be read: {error.strerror or error}") from error


def check_digest(folder: Path, name: str, sha256: str) -> None:
    """ArtifactError unless the file ``name``, whose bytes have the hash ``sha256``, is as it was exported.

    Where ``folder`` has no manifest, or one without a hash of the whole file, there is nothing to compare with.
    """
    if not has_file(folder, MANIFEST_FILE):
        return
    for record in read_manifest(folder).files:
        if record.path == name and record.scope == "full" and record.sha256 != sha256:
            raise ArtifactError(f"{folder / name}: its content changed since the export: {_REMEDY}")


def check_artifact(folder: Path) -> None:
    """``check_files`` with the folder's own manifest: it detects damage, not forgery."""
    check_files(folder, read_manifest(folder))


def damaged_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Files that are missing or have another size than when they were exported, one sentence each; reads none."""
    damage = []
    for record in manifest.files:
        if not has_file(folder, record.path):
            damage.append(f"{record.path}: missing")
            continue
        with open_inside(folder, record.path, None, remedy=_REMEDY) as file:
            if (size := size_of(file)) != record.nbytes:
                damage.append(f"{record.path}: expected {record.nbytes} bytes, found {size} ({MANIFEST_FILE})")
    return tuple(damage)


def _check_file(file: BinaryIO, path: Path, record: FileRecord) -> None:
    size = size_of(file)
    if size != record.nbytes:
        raise ArtifactError(f"{path}: expected {record.nbytes} bytes, found {size}: {_REMEDY}")
    header = None if record.scope == "full" else _header_length(file)
    if sha256_of(file, header) != record.sha256:
        raise ArtifactError(f"{path}: its content changed since the export: {_REMEDY}")


def _header_length(file: BinaryIO) -> int:
    length = 8 + int.from_bytes(file.read(8), "little")
    file.seek(0)
    return length


def sha256_of(file: BinaryIO, limit: int | None = None) -> str:
    """The hash of an open file from its position on: of all of it, or of ``limit`` bytes."""
    digest = hashlib.sha256()
    remaining = size_of(file) if limit is None else limit
    while remaining > 0 and (chunk := file.read(min(_CHUNK, remaining))):
        digest.update(chunk)
        remaining -= len(chunk)
    return digest.hexdigest()
