"""What a run that was stopped left is used only where it is whole and no other user can have changed it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridge
from hybridge.artifact.errors import OutputError
from hybridge.quantization import run
from hybridge.quantization.work_folder import WorkFolder, work_folder
from tests.support.tiny_models import save_tiny_model

DIGEST = "0" * 64


def interrupted(out: Path, *steps: str) -> None:
    """A run that finishes ``steps``, and is then stopped."""
    with pytest.raises(KeyboardInterrupt), work_folder(out, DIGEST, resume=True) as work:
        for step in steps:
            work.finish(step, [step])
        raise KeyboardInterrupt


def test_a_line_that_was_cut_off_is_dropped_for_good(tmp_path: Path) -> None:
    out = tmp_path / "out"
    interrupted(out, "one", "two")
    journal = tmp_path / ".out.hybridge-quantize" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-4])
    interrupted(out, "three")
    with work_folder(out, DIGEST, resume=True) as work:
        assert [work.result(step) for step in ("one", "two", "three")] == [["one"], None, ["three"]]


@pytest.mark.parametrize("damage", ["cut", "header", "type", "link", "missing"])
def test_damaged_files_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    checkpoint, out, whole = save_tiny_model(tmp_path / "checkpoint", "llama"), tmp_path / "out", tmp_path / "whole"
    hybridge.quantize(checkpoint, whole, method="rtn")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "check_unchanged", interrupt)
        hybridge.quantize(checkpoint, out, method="rtn")
    path = tmp_path / ".out.hybridge-quantize" / "model.safetensors"
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "header":
        path.write_bytes(content.replace(b"down_proj", b"down_pr0j"))
    elif damage == "type":
        path.write_bytes(content.replace(b'"I64"', b'"X64"'))
    else:
        path.unlink()
    if damage == "link":
        shutil.copy(whole / path.name, tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    hybridge.quantize(checkpoint, out, method="rtn", resume=True)
    assert (out / path.name).read_bytes() == (whole / path.name).read_bytes() and not (out / path.name).is_symlink()


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_files_are_on_the_disk_before_the_journal_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, finish, sync_path = set[str](), WorkFolder.finish, run.sync_path

    def synced_first(work: WorkFolder, step: str, result: Any) -> None:
        assert not step.startswith("file ") or step.removeprefix("file ") in synced
        finish(work, step, result)

    def sync(path: Path) -> None:
        synced.add(path.name)
        sync_path(path)

    monkeypatch.setattr(run, "sync_path", sync)
    monkeypatch.setattr(WorkFolder, "finish", synced_first)
    hybridge.quantize(save_tiny_model(tmp_path / "checkpoint", "llama"), tmp_path / "out", method="rtn")
    assert synced == {"model.safetensors"}


def test_folders_that_others_can_change_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, folder, elsewhere = tmp_path / "out", tmp_path / ".out.hybridge-quantize", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(OutputError, match="expected a folder, found a link: remove it"), work_folder(out, DIGEST, True):
        pass
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OutputError, match="only you may write to, found mode 0777"), work_folder(out, DIGEST, True):
        pass
    folder.chmod(0o755)
    with monkeypatch.context() as patch, pytest.raises(OutputError, match="that you own, found owner"):
        if folder.stat().st_uid == 0:  # root's folders are anyone's
            os.chown(folder, 1, 1)
        patch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        with work_folder(out, DIGEST, resume=True):
            pass
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(OutputError, match="File exists: remove it"), work_folder(out, DIGEST, resume=True):
        pass
