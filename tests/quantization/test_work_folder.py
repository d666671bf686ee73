"""What a stopped run leaves, used only where it is whole and no other user can have changed it."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import hybridge
from hybridge.artifact.errors import CheckpointError, HybridgeError, OutputError
from hybridge.quantization import run, shard
from hybridge.quantization.work_folder import WorkFolder, work_folder
from tests.support.effort import EFFORT
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


@pytest.mark.parametrize(
    ("place", "step", "pattern"),
    # The last syncs, and the last rename, are those of a complete output.
    [("fsync", 6, "-+r+-+"), ("write_matrix", 6, "r+"), ("rename", 1, "rr-")],
)
def test_a_disk_that_is_full_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, step: int, pattern: str
) -> None:
    """The finished steps stay from the first one on, and a run that resumes has the output of one that did not stop."""
    checkpoint, out, work = tmp_path / "checkpoint", tmp_path / "out", tmp_path / ".out.hybridge-quantize"
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(checkpoint, "llama"))
    shutil.rmtree(checkpoint)
    model.save_pretrained(checkpoint, max_shard_size=model.num_parameters() * 3)
    hybridge.quantize(checkpoint, out, method="rtn")
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    owner = shard if place == "write_matrix" else os
    function, left = getattr(owner, place), list[bool]()
    for count in itertools.count(1, step if EFFORT == "push" else 1):
        shutil.rmtree(out)
        calls = itertools.count(1)

        def failing(*arguments: Any, count: int = count, calls: Iterator[int] = calls) -> Any:
            if next(calls) == count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, place, failing)
            try:
                hybridge.quantize(checkpoint, out, method="rtn")
                break
            except OutputError as error:
                left.append(work.is_dir())
                assert ("pass `resume=True` to continue" in str(error)) is left[-1]
                assert ("nothing was left behind" in str(error)) is not left[-1]
        assert not out.exists() and len(list(tmp_path.iterdir())) == 1 + left[-1]
        hybridge.quantize(checkpoint, out, method="rtn", resume=True)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    assert re.fullmatch(pattern, "".join("r" if each else "-" for each in left))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out: the machine is out of memory: close other programs; "),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "OutOfMemoryError: CUDA out of memory: free memory or check the GPU; ",
        ),
        (OSError(errno.EIO, "I/O error", "shard"), "shard: I/O error; "),
        (BrokenPipeError(errno.EPIPE, "closed"), ""),
        (KeyboardInterrupt(), ""),
        (CheckpointError("damaged"), None),
        (ValueError("a bug"), None),
    ],
)
def test_only_errors_that_may_not_come_again_leave_finished_layers(
    tmp_path: Path, error: BaseException, message: str | None
) -> None:
    out, folder = tmp_path / "out", tmp_path / ".out.hybridge-quantize"
    for finished in (False, True):
        resumable = finished and message is not None
        with (
            pytest.raises(HybridgeError if resumable and message else type(error)) as caught,
            work_folder(out, DIGEST, False) as work,
        ):
            if finished:
                work.finish("one", [1])
            raise error
        assert folder.exists() is resumable
        if resumable and message:
            assert f"{message}{folder} keeps the finished layers: pass `resume=True` to continue" in str(caught.value)
        else:
            assert caught.value is error


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
