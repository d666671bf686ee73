"""Remains of killed runs next to an output are removed by the next run; folders of living runs and other files stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridge.artifact.errors import OutputError
from hybridge.artifact.folder import atomic_folder, check_output
from hybridge.artifact.temporary_folder import OLD, PARTIAL, clear_left_over, temporary_folder
from tests.artifact.test_folder import ROOT, content, only, write

# Prints a line while it writes "out", then waits for its end; "swap" stops between the two renames of an overwrite
# where names cannot be exchanged, "exchange" right after the exchange.
WRITER = """
import os, sys, time
from pathlib import Path
from hybridge.artifact import folder as writing
from hybridge.artifact.folder import atomic_folder

def wait():
    print("ready", flush=True)
    time.sleep(600)

rename = os.rename
def late(source, target):
    rename(source, target)
    wait()

with atomic_folder(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "manifest.json").write_text('{"manifest_version": 1, "text": "killed"}')
    exchange = writing.exchange_names
    if sys.argv[2] == "swap":
        writing.exchange_names = lambda one, other: False
        os.rename = late
    elif sys.argv[2] == "exchange":
        writing.exchange_names = lambda one, other: exchange(one, other) and wait()
    else:
        wait()
"""


def start_writer(out: Path, where: str = "write") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(out), where]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    kill(start_writer(tmp_path / "out"))
    assert len(list(tmp_path.iterdir())) == 1
    with only(tmp_path, "out"):
        write(tmp_path / "out")


def test_what_a_running_process_writes_stays(tmp_path: Path) -> None:
    process = start_writer(tmp_path / "out")
    try:
        (busy,) = tmp_path.iterdir()
        with only(tmp_path, "out", busy.name):
            write(tmp_path / "out")
    finally:
        kill(process)


def test_an_output_that_a_killed_run_set_aside_gets_its_name_back(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    kill(start_writer(tmp_path / "out", "swap"))
    check_output(tmp_path / "out", overwrite=False)  # it is gone
    with only(tmp_path, "out"), pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "out", "new")
    assert content(tmp_path / "out") == "old"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux exchanges names")
def test_a_run_that_is_killed_after_the_exchange_leaves_the_new_output(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    kill(start_writer(tmp_path / "out", "exchange"))
    assert content(tmp_path / "out") == "killed" and len(list(tmp_path.iterdir())) == 2
    with only(tmp_path, "out"):
        write(tmp_path / "out", "new", overwrite=True)


def test_an_output_that_was_replaced_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    kill(start_writer(tmp_path / "out", "swap"))
    (partial,) = tmp_path.glob(f"*{PARTIAL}")
    partial.rename(tmp_path / "out")
    with only(tmp_path, "out"):
        write(tmp_path / "out", "new", overwrite=True)
    assert content(tmp_path / "out") == "new"


def test_folders_of_others_stay(tmp_path: Path) -> None:
    names = (".out.abcdefgh.partial", ".out.hybridge-abcdefgh.partial.bak", ".out2.hybridge-abcdefgh.partial", "mine")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.hybridge-filefile.partial").write_text("a file")
    (tmp_path / ".out.hybridge-linklink.partial").symlink_to("mine")
    with only(tmp_path, *names, ".out.hybridge-filefile.partial", ".out.hybridge-linklink.partial"):
        clear_left_over(tmp_path / "out")


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".out.hybridge-abcdefgh.partial").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with only(tmp_path, ".out.hybridge-abcdefgh.partial"):
        clear_left_over(tmp_path / "out")


def test_without_locks_no_folder_counts_as_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    (tmp_path / ".out.hybridge-abcdefgh.partial").mkdir()
    with only(tmp_path, "out", ".out.hybridge-abcdefgh.partial"):
        write(tmp_path / "out")


def test_a_folder_taken_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hybridge.artifact.temporary_folder as module

    lock = module.lock_folder
    taken: list[Path] = []

    def late(folder: Path, wait: bool) -> int | None:
        if not taken:
            taken.append(folder)
            folder.rmdir()
        return lock(folder, wait)

    monkeypatch.setattr(module, "lock_folder", late)
    with only(tmp_path), temporary_folder(tmp_path / "out", PARTIAL) as folder:
        assert folder.is_dir() and folder != taken[0]


def test_an_output_that_cannot_be_put_back_is_not_removed(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "out", OLD) as aside:
        (aside / "old").mkdir()
    assert [path.name for path in aside.iterdir()] == ["old"]
    with pytest.raises(OutputError, match="exists already"), atomic_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
