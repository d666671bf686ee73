"""Atomic folders: all or nothing, whatever ends the writing; only an earlier artifact is ever replaced."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridge.artifact.errors import OutputError
from hybridge.artifact.exchanged_names import exchange_names
from hybridge.artifact.folder import ENGINE, atomic_folder, check_output

ROOT = Path(__file__).parents[2]


def manifest(text: str) -> str:
    """What tells an exported folder: a JSON object of this version, here with ``text`` in it."""
    return json.dumps({"manifest_version": 1, "text": text})


def write(out: Path, text: str = "new", overwrite: bool = False) -> None:
    with atomic_folder(out, overwrite) as folder:
        (folder / "manifest.json").write_text(manifest(text))
        (folder / "weights").mkdir()
        (folder / "weights" / "w").write_text(text)


def content(out: Path) -> str:
    text: str = json.loads((out / "manifest.json").read_text())["text"]
    return text


@contextlib.contextmanager
def only(folder: Path, *names: str) -> Iterator[None]:
    """At the end ``folder`` holds exactly ``names``: nothing hidden is left behind."""
    yield
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_appears_only_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with only(tmp_path, "out"), atomic_folder(out) as folder:
        assert folder.parent == tmp_path and folder.is_dir()
        (folder / "manifest.json").write_text(manifest("new"))
        assert not out.exists()
    assert content(out) == "new"


def test_parents_are_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "out")
    assert content(tmp_path / "a" / "b" / "out") == "new"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with only(tmp_path, "out"):
        write(Path("out"))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OutputError, BrokenPipeError])
def test_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with only(tmp_path), pytest.raises(error), atomic_folder(tmp_path / "a" / "out") as folder:
        (folder / "big").mkdir()
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failed_overwrite_keeps_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "out", "old")
    with only(tmp_path, "out"), pytest.raises(error), atomic_folder(tmp_path / "out", overwrite=True) as folder:
        (folder / "manifest.json").write_text(manifest("new"))
        raise error
    assert content(tmp_path / "out") == "old"


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that cannot exchange two names."""
    monkeypatch.setattr("hybridge.artifact.folder.exchange_names", lambda one, other: False)


@pytest.mark.usefixtures("no_exchange")
def test_overwrite_without_an_exchange_of_names(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with only(tmp_path, "out"):
        write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "new"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux exchanges names")
def test_an_overwritten_folder_is_never_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run leaves the old folder or the new one under the name, not none."""
    write(tmp_path / "out", "old")
    monkeypatch.setattr(os, "rename", lambda *paths: pytest.fail("out was renamed"))
    with only(tmp_path, "out"):
        write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "new"


def test_names_are_exchanged_or_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert not exchange_names(tmp_path / "a", tmp_path / "none") and (tmp_path / "a").read_text() == "a"
    (tmp_path / "b").mkdir()
    exchanged = exchange_names(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").is_dir() == (tmp_path / "b").is_file() == exchanged


@pytest.mark.usefixtures("no_exchange")
@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_failed_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    write(tmp_path / "out", "old")
    rename, calls = os.rename, []

    def fail(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with only(tmp_path, "out"), pytest.raises((OutputError, KeyboardInterrupt)):
        write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "old"


@pytest.mark.usefixtures("no_exchange")
def test_interruption_right_after_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        rename(source, target)
        monkeypatch.setattr(os, "rename", rename)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", late)
    with only(tmp_path, "out"), pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "old"


def test_overwrite_replaces_everything(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out" / "stale").write_text("")
    with only(tmp_path, "out"):
        write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "new" and not (tmp_path / "out" / "stale").exists()


def test_existing_needs_overwrite(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with only(tmp_path, "out"), pytest.raises(OutputError, match="`overwrite=True`"):
        write(tmp_path / "out")
    assert content(tmp_path / "out") == "old"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.txt", "mine"),
        ("manifest.json", '{"name": "a browser extension"}'),
        ("manifest.json", '["a list"]'),
        ("manifest.json", "{ broken"),
        ("config.json", '{"model_type": "llama"}'),
    ],
)
def test_foreign_folder_is_never_replaced(tmp_path: Path, name: str, text: str, overwrite: bool) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(text)
    with only(tmp_path, "out"), pytest.raises(OutputError, match=r"not an export that hybridge wrote.*another path"):
        write(tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / name).read_text() == text


def test_export_with_a_damaged_manifest_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{ broken")
    (tmp_path / "out" / "config.json").write_text('{"format_version": 1, "bindings": {}}')
    write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "new"


def test_empty_folder_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == "new"


def test_another_kind_of_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "engine.json").write_text('{"engine_version": 1}')
    with pytest.raises(OutputError, match="not an export"):
        check_output(tmp_path / "out", overwrite=True)
    with pytest.raises(OutputError, match="exists already: pass `overwrite=True` to replace it, or move it away"):
        check_output(tmp_path / "out", overwrite=False, kind=ENGINE)
    with atomic_folder(tmp_path / "out", overwrite=True, kind=ENGINE) as folder:
        (folder / "engine.json").write_text("new")
    assert (tmp_path / "out" / "engine.json").read_text() == "new"
    with pytest.raises(OutputError, match=r"not an engine that hybridge wrote .no engine.json"):
        check_output(tmp_path / "out", overwrite=True, kind=ENGINE)


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_and_links_are_refused(tmp_path: Path, overwrite: bool) -> None:
    write(tmp_path / "artifact", "old")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("artifact")
    (tmp_path / "dangling").symlink_to("nowhere")
    with only(tmp_path, "artifact", "file", "link", "dangling"):
        for name in ("file", "link", "dangling"):
            with pytest.raises(OutputError, match="found a file or link"):
                write(tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "file").read_text() == "mine" and content(tmp_path / "artifact") == "old"


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with only(tmp_path, "file"), pytest.raises(OutputError):
        write(tmp_path / "file" / "out")


def test_files_that_another_run_wrote_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with only(tmp_path, "out"), pytest.raises(OutputError, match="exists already"), atomic_folder(out) as folder:
        (folder / "manifest.json").write_text("late")
        write(out, "first")
    assert content(out) == "first"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(tmp_path: Path, code: int) -> None:
    write(tmp_path / "out", "old")
    with (
        only(tmp_path, "out"),
        pytest.raises(OutputError, match="disk is full"),
        atomic_folder(tmp_path / "out", overwrite=True),
    ):
        raise OSError(code, os.strerror(code))
    assert content(tmp_path / "out") == "old"


def test_disk_that_is_full_only_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems report a full disk only when the bytes are brought to it."""

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with only(tmp_path), pytest.raises(OutputError, match="disk is full"):
        write(tmp_path / "out")


def test_shared_files_are_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shard").write_text("big")
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), fsync(handle)))
    with atomic_folder(tmp_path / "out") as folder:
        os.link(tmp_path / "shard", folder / "shard")
        (folder / "small").write_text("x")
    out = tmp_path / "out"
    assert {out.stat().st_ino, (out / "small").stat().st_ino} == set(synced)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from hybridge.artifact.errors import OutputError
from hybridge.artifact.folder import atomic_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    with atomic_folder(Path(sys.argv[1])) as folder:
        (folder / "weights").write_bytes(bytes(1 << 20))
except OutputError as error:
    sys.exit(f"{error}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_write_that_the_system_refuses(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "out")]
    with only(tmp_path):
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "out: cannot be written: File too large: give another path" in ended.stderr


FULL_DISK = """
import sys
from pathlib import Path
from hybridge.artifact.errors import OutputError
from hybridge.artifact.folder import atomic_folder
try:
    with atomic_folder(Path("/mnt/out")) as folder:
        (folder / "weights").write_bytes(bytes(1 << 20))
except OutputError as error:
    sys.exit(f"{error}; left: {[p.name for p in Path('/mnt').iterdir()]}")
"""
TINY_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


def _mounts_tiny_disks() -> bool:
    with contextlib.suppress(OSError):
        command = [*TINY_DISK, "mount -t tmpfs -o size=64k none /mnt"]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    return False


def test_disk_of_64_kib(tmp_path: Path) -> None:
    if not _mounts_tiny_disks():
        pytest.skip("this system lets no user mount a small file system")
    script = f'mount -t tmpfs -o size=64k none /mnt && "{sys.executable}" -c "$0"'
    ended = subprocess.run(
        [*TINY_DISK, script, FULL_DISK], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1 and "disk is full" in ended.stderr and "left: []" in ended.stderr


def test_a_file_in_the_place_of_a_folder_above(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with (
        only(tmp_path, "notes"),
        pytest.raises(OutputError, match=r"a/out: expected a folder .* found the file .*notes:"),
    ):
        write(tmp_path / "notes" / "a" / "out")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_parent_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        write(tmp_path / "locked" / "out")


def test_permission_denied_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    for method in ("exists", "mkdir"):
        with monkeypatch.context() as patch, pytest.raises(OutputError, match="out: cannot be written: Permission"):
            patch.setattr(Path, method, fail)
            write(tmp_path / "out")
