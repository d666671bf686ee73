"""Shards in the artifact: shared or copied, whatever the file system allows, and never half."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from hybridge.artifact.errors import CheckpointError, OutputError
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.weights import file_copy, place_shards
from hybridge.exporter.weights.placing import WEIGHTS_FOLDER
from tests.exporter.checkpoint.folders import TENSORS, hub_cache, sharded, single, write_index


def place(checkpoint: Path, out: Path, mode: str) -> dict[str, Path]:
    """Place the shards of ``checkpoint``, compare every tensor, return the files by name."""
    out.mkdir()
    tensors = place_shards(open_checkpoint(checkpoint).shards, out, mode)
    assert set(tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        assert tensors[name].path.parent == out / WEIGHTS_FOLDER
        np.testing.assert_array_equal(tensors[name].map(), expected)
    files = {path.name: path for path in (out / WEIGHTS_FOLDER).iterdir()}
    assert not any(path.is_symlink() for path in files.values())
    return files


@pytest.fixture
def no_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without reflinks."""
    monkeypatch.setattr(file_copy, "_clone", lambda reader, writer: False)


@pytest.mark.usefixtures("no_clone")
def test_link_shares_the_file(tmp_path: Path) -> None:
    checkpoint = sharded(tmp_path / "c")
    for mode in ("link", "auto"):
        for name, path in place(checkpoint, tmp_path / mode, mode).items():
            assert path.samefile(checkpoint / name)


@pytest.mark.usefixtures("no_clone")
def test_link_goes_to_the_blob_of_a_download_cache(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path, single(tmp_path / "c"))
    files = place(snapshot, tmp_path / "out", "link")
    assert files["model.safetensors"].samefile((snapshot / "model.safetensors").resolve())
    shutil.rmtree(snapshot.parents[1])
    assert files["model.safetensors"].read_bytes()


@pytest.mark.parametrize("mode", ["copy", "reflink", "auto"])
def test_where_blocks_can_be_shared_that_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def clone(reader: BinaryIO, writer: BinaryIO) -> bool:
        writer.write(reader.read())
        return True

    monkeypatch.setattr(file_copy, "_clone", clone)
    checkpoint = sharded(tmp_path / "c")
    for name, path in place(checkpoint, tmp_path / "out", mode).items():
        assert not path.samefile(checkpoint / name) and path.stat().st_nlink == 1


@pytest.mark.parametrize("mode", ["copy", "link", "auto"])
def test_this_file_system(tmp_path: Path, mode: str) -> None:
    place(sharded(tmp_path / "c"), tmp_path / "out", mode)


def test_copy_is_independent(tmp_path: Path) -> None:
    checkpoint = single(tmp_path / "c")
    files = place(checkpoint, tmp_path / "out", "copy")
    before = files["model.safetensors"].read_bytes()
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.write(b"damaged!")
    assert files["model.safetensors"].read_bytes() == before


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_link_that_cannot_be_becomes_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    checkpoint = sharded(tmp_path / "c")
    for name, path in place(checkpoint, tmp_path / "out", "auto").items():
        assert not path.samefile(checkpoint / name)
    with pytest.raises(OutputError, match=r"file system on which a link .*`weights='auto'`"):
        place(checkpoint, tmp_path / "linked", "link")


@pytest.mark.usefixtures("no_clone")
def test_a_requested_reflink_that_is_impossible_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"file system on which a reflink .*`weights='auto'`"):
        place(sharded(tmp_path / "c"), tmp_path / "out", "reflink")


def test_other_failures_of_a_link_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_clone: None) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="No space left"):
        place(single(tmp_path / "c"), tmp_path / "out", "link")


def test_another_file_system(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this system has no second file system to write to")
    out = memory / f"hybridge-test-{os.getpid()}"
    try:
        place(sharded(tmp_path / "c"), out, "auto")
    finally:
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_copy_where_the_kernel_does_not_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", fail, raising=False)
    place(single(tmp_path / "c"), tmp_path / "out", "copy")


@pytest.mark.usefixtures("no_clone")
def test_copy_that_the_kernel_gives_up_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [13, 0]

    def some(source: int, target: int, count: int) -> int:
        return os.write(target, os.read(source, sizes.pop(0)))

    monkeypatch.setattr(os, "copy_file_range", some, raising=False)
    place(single(tmp_path / "c"), tmp_path / "out", "copy")


@pytest.mark.usefixtures("no_clone")
def test_full_disk_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", fail, raising=False)
    with pytest.raises(OSError, match="No space left"):
        place(single(tmp_path / "c"), tmp_path / "out", "copy")


def test_name_of_the_artifact_s_own_file(tmp_path: Path) -> None:
    checkpoint = single(tmp_path / "c")
    (checkpoint / "model.safetensors").rename(checkpoint / "derived.safetensors")
    write_index(checkpoint, dict.fromkeys(TENSORS, "derived.safetensors"))
    with pytest.raises(CheckpointError, match=r"derived\.safetensors has the name"):
        place(checkpoint, tmp_path / "out", "link")


@pytest.mark.parametrize("mode", ["copy", "link"])
def test_checkpoint_that_changed_since_it_was_opened(tmp_path: Path, mode: str) -> None:
    shards = open_checkpoint(single(tmp_path / "c")).shards
    os.truncate(shards[0].path, shards[0].nbytes - 2)
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="changed while it was read"):
        place_shards(shards, tmp_path / "out", mode)


@pytest.mark.parametrize("mode", ["copy", "link"])
def test_a_shard_that_another_of_equal_size_replaced_is_noticed(tmp_path: Path, mode: str) -> None:
    """Between reading the header and placing the file: the graph would point at other tensors."""
    checkpoint = single(tmp_path / "c")
    shards = open_checkpoint(checkpoint).shards
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    other = content.replace(b"embedding", b"EMBEDDING")
    assert other != content
    path.unlink()
    path.write_bytes(other)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: changed while it was read"):
        place_shards(shards, tmp_path, mode)


def test_a_shard_that_a_pipe_replaced_is_refused_at_once(tmp_path: Path) -> None:
    checkpoint = single(tmp_path / "c")
    shards = open_checkpoint(checkpoint).shards
    (checkpoint / "model.safetensors").unlink()
    os.mkfifo(checkpoint / "model.safetensors")
    with pytest.raises(CheckpointError, match="found a pipe"):
        place_shards(shards, tmp_path, "link")
