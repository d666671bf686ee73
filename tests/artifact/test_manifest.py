"""manifest.json: round trip, damage that is noticed, and paths that must not leave the artifact."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.manifest import (
    FileRecord,
    Manifest,
    check_digest,
    check_files,
    damaged_files,
    read_manifest,
    record_file,
    write_manifest,
)
from hybridge.artifact.safetensors_file import read_safetensors
from tests.artifact.samples import save_sample


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    save_sample(tmp_path / "weights" / "m.safetensors")
    (tmp_path / "model.onnx").write_bytes(b"graph" * 1000)
    start = read_safetensors(tmp_path / "weights" / "m.safetensors").data_start
    files = (record_file(tmp_path, "model.onnx"), record_file(tmp_path, "weights/m.safetensors", start))
    write_manifest(tmp_path, Manifest({"hybridge": "1"}, "tiny", {"dtype": None}, files, ("a note",)))
    return tmp_path


def test_round_trip(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert manifest.files[0].sha256 == hashlib.sha256(b"graph" * 1000).hexdigest()
    assert [f.scope for f in manifest.files] == ["full", "header"]
    assert manifest.notes == ("a note",) and manifest.arguments == {"dtype": None}
    write_manifest(artifact, manifest)
    assert read_manifest(artifact) == manifest
    check_files(artifact, manifest)


def test_header_record_hashes_the_header_only(artifact: Path) -> None:
    path = artifact / "weights" / "m.safetensors"
    file = read_safetensors(path)
    record = read_manifest(artifact).files[1]
    assert record.sha256 == hashlib.sha256(path.read_bytes()[: file.data_start]).hexdigest()
    assert record.nbytes == path.stat().st_size


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "position"),
    [("model.onnx", 0), ("model.onnx", 4999), ("weights/m.safetensors", 0), ("weights/m.safetensors", 7),
     ("weights/m.safetensors", 20)],
)  # fmt: skip
def test_changed_bytes_are_noticed(artifact: Path, name: str, position: int) -> None:
    damage(artifact / name, position)
    with pytest.raises(ArtifactError, match=f"{Path(name).name}: its content changed"):
        check_files(artifact, read_manifest(artifact))


def test_a_digest_is_compared_with_the_exported_file(artifact: Path) -> None:
    header = read_manifest(artifact).files[1].path
    for name in (header, "not recorded"):
        check_digest(artifact, name, "0" * 64)
    check_digest(artifact, "model.onnx", hashlib.sha256(b"graph" * 1000).hexdigest())
    with pytest.raises(ArtifactError, match=r"model\.onnx: its content changed since the export: export again"):
        check_digest(artifact, "model.onnx", hashlib.sha256(b"braph" * 1000).hexdigest())
    (artifact / "manifest.json").unlink()
    check_digest(artifact, "model.onnx", "0" * 64)


def test_missing_and_resized_files_are_noticed(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    (artifact / "model.onnx").write_bytes(b"graph" * 999)
    with pytest.raises(ArtifactError, match="expected 5000 bytes, found 4995"):
        check_files(artifact, manifest)
    (artifact / "model.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"expected the file .*/model\.onnx, found none"):
        check_files(artifact, manifest)


@pytest.mark.parametrize("path", ["../secret", "weights/../../secret", "/etc/hostname", "a\0b", "x" * 300, ""])
def test_paths_that_leave_the_artifact_are_refused(artifact: Path, path: str) -> None:
    manifest = replace(read_manifest(artifact), files=(FileRecord(path, 1, "0" * 64),))
    with pytest.raises(ArtifactError, match=r"expected (a|the name of a) file|cannot be read"):
        check_files(artifact, manifest)


def test_damage_is_found_without_reading_all(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert damaged_files(artifact, manifest) == ()
    damage(artifact / "model.onnx", 3)
    assert damaged_files(artifact, manifest) == ()
    os.truncate(artifact / "model.onnx", 4)
    (artifact / "weights" / "m.safetensors").unlink()
    assert damaged_files(artifact, manifest) == (
        "model.onnx: expected 5000 bytes, found 4 (manifest.json)",
        "weights/m.safetensors: missing",
    )


@pytest.mark.parametrize("check", [check_files, damaged_files])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipes_and_links_that_leave_are_refused(
    artifact: Path, check: Callable[[Path, Manifest], object], make: Callable[[Path], object]
) -> None:
    manifest = read_manifest(artifact)
    (artifact / "model.onnx").unlink()
    make(artifact / "model.onnx")
    with pytest.raises(ArtifactError, match=r"found a pipe|found a link that leaves"):
        check(artifact, manifest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"manifest_version": 2}, r"manifest_version: expected 1 \(export the checkpoint again\), found 2"),
        ({"versions": []}, "versions"),
        ({"versions": {"torch": 2}}, "versions"),
        ({"notes": [3]}, "notes"),
        ({"checkpoint": None}, "checkpoint"),
        ({"files": [{"path": "x", "nbytes": 1, "sha256": "0", "scope": "some"}]}, "scope"),
        ({"files": [{"path": "x", "nbytes": -1, "sha256": "0", "scope": "full"}]}, "nbytes"),
        ({"files": [{"path": "x", "nbytes": 1, "sha256": "0", "scope": "full", "y": 1}]}, "unknown field.*y"),
        ({"files": ["x"]}, "files"),
        ({"extra": 1}, "unknown field.*extra"),
    ],
)
def test_malformed_manifests(artifact: Path, change: dict[str, Any], words: str) -> None:
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ArtifactError, match=words):
        read_manifest(artifact)


def test_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json, found none"):
        read_manifest(tmp_path)
