"""What a path inside an untrusted folder may be, and that nothing else is waited for or read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.untrusted_file import has_file, open_given, open_inside, read_given, read_inside, size_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files, next to one that must not be read."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"secret")
    inside = tmp_path / "folder"
    (inside / "weights").mkdir(parents=True)
    (inside / "file").write_bytes(b"content")
    (inside / "weights" / "file").write_bytes(b"weights")
    return inside


@pytest.mark.parametrize(("name", "content"), [("file", b"content"), ("weights/file", b"weights")])
def test_regular_files_are_read(folder: Path, name: str, content: bytes) -> None:
    assert read_inside(folder, name, len(content)) == content
    assert read_given(folder / name, len(content)) == content
    with open_inside(folder, name, None) as file:
        assert size_of(file) == len(content) and file.read() == content


def test_links_that_stay_inside_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to("weights/file")
    (folder / "linked").symlink_to("weights")
    (tmp_path / "other name").symlink_to("folder")
    assert read_inside(folder, "link", 9) == read_inside(folder, "linked/file", 9) == b"weights"
    assert read_inside(tmp_path / "other name", "link", 9) == b"weights"


def test_blobs_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    for path in (blob.parent, snapshot):
        path.mkdir(parents=True)
    blob.write_bytes(b"blob")
    (snapshot / "file").symlink_to("../../blobs/0123")
    assert read_inside(snapshot, "file", 9) == b"blob"


@pytest.mark.parametrize("folder", ["models--evil--c/snapshots/1", "models--a--b/refs/1", "models--a--b/x", "c"])
def test_blobs_of_another_repository_are_not_followed(tmp_path: Path, folder: str) -> None:
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"private")
    inside = tmp_path / folder
    inside.mkdir(parents=True)
    (inside / "file").symlink_to(blob)
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        read_inside(inside, "file", 9)


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "absolute": lambda folder: str(folder.parent / "secret"),
    "parent": lambda folder: "../secret",
    "parent in the middle": lambda folder: "weights/../../secret",
    "empty": lambda folder: "",
    "a link": lambda folder: _link(folder / "link", "../secret"),
    "an absolute link": lambda folder: _link(folder / "link", str(folder.parent / "secret")),
    "a folder's link": lambda folder: _link(folder / "linked", "../elsewhere") + "/file",
}


def _link(path: Path, target: str) -> str:
    path.symlink_to(target)
    return path.name


@pytest.mark.parametrize("case", OUTSIDE)
def test_nothing_outside_is_read(folder: Path, case: str) -> None:
    with pytest.raises(ArtifactError, match=r"expected a file inside .*: export the checkpoint again"):
        open_inside(folder, OUTSIDE[case](folder), None)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(path.parent, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (Path.mkdir, "a folder"),
    "pipe": (os.mkfifo, "a pipe"),
    "socket": (_socket, "cannot be read"),
}


@pytest.mark.parametrize("case", SPECIAL)
def test_special_files_are_refused_at_once(folder: Path, case: str) -> None:
    """A pipe that nothing writes to would block ``open`` forever."""
    make, words = SPECIAL[case]
    make(folder / "special")
    assert has_file(folder, "special")
    for read in (lambda: read_inside(folder, "special", 9), lambda: read_given(folder / "special", 9)):
        with pytest.raises(ArtifactError, match=words):
            read()


def test_devices_are_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="/dev/zero: expected a file, found a device: give another file"):
        read_given(Path("/dev/zero"), 9)
    (folder / "zero").symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        read_inside(folder, "zero", 9)


def test_large_files_are_refused_unread(folder: Path) -> None:
    os.truncate(folder / "file", 1 << 40)  # takes no room
    for read in (lambda: read_inside(folder, "file", 99), lambda: read_given(folder / "file", 99)):
        with pytest.raises(ArtifactError, match=r"file: expected at most 99 bytes, found 1099511627776"):
            read()


def test_a_file_that_grows_while_it_is_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat
    (folder / "file").write_bytes(bytes(10))

    def early(handle: int) -> os.stat_result:
        status = list(real(handle))
        status[6] = 0
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", early)
    with pytest.raises(ArtifactError, match="expected at most 9 bytes, found more"):
        read_inside(folder, "file", 9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", r"expected the file .*absent, found none: remedy"),
        ("file/inner", "cannot be read: Not a directory: remedy"),
        ("x" * 300, "cannot be read: File name too long: remedy"),
        ("a\0b", "character that no name has: remedy"),
    ],
)
def test_errors_are_typed(folder: Path, name: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        open_inside(folder, name, 9, RequestError, "remedy")
    with pytest.raises(RequestError, match=words):
        open_given(folder / name, 9, RequestError, "remedy")


def test_a_file_without_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", fail)
    for read in (lambda: read_inside(folder, "file", 9), lambda: read_given(folder / "file", 9)):
        with pytest.raises(ArtifactError, match="file: cannot be read: Permission denied"):
            read()


def test_loops_of_links_are_refused(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    for read in (lambda: read_inside(folder, "loop", 9), lambda: read_given(folder / "loop", 9)):
        with pytest.raises(ArtifactError, match="found a loop of links"):
            read()


def test_no_descriptor_is_left_open(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    os.mkfifo(folder / "pipe")
    for name in ("pipe", "weights", "weights/none", "file", "weights/file"):
        with pytest.raises(ArtifactError):
            read_inside(folder, name, 1)
    assert set(os.listdir("/proc/self/fd")) == before
