"""Copies of tensors: the bytes are those of the source, holes stay holes, and a shorter file is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.weights import source_files
from hybridge.exporter.weights.source_files import SourceFiles

PAGES = 1 << 16
# Bytes of data, and where they are in a file whose rest is a hole.
DATA = np.random.default_rng(0).integers(1, 256, PAGES, np.uint8)
AT, SIZE = 2 * PAGES, 5 * PAGES


@pytest.fixture(params=["in the kernel", "refused by the kernel", "no such call"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.seek(AT)
        file.write(DATA)
        file.truncate(SIZE)
    if request.param == "no such call":
        for name in ("copy_file_range", "SEEK_DATA"):
            monkeypatch.delattr(os, name, raising=False)
    elif request.param == "refused by the kernel":

        def refuse(*_: object) -> int:
            raise OSError(errno.EXDEV, "")

        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    yield path


def slot_of(path: Path, offset: int, nbytes: int) -> TensorSlot:
    return TensorSlot("a", DType.UINT8, (nbytes,), path, offset, nbytes)


def content() -> np.ndarray:
    raw = np.zeros(SIZE, np.uint8)
    raw[AT : AT + PAGES] = DATA
    return raw


def test_every_range_is_copied(source: Path, tmp_path: Path) -> None:
    starts = (0, 8, AT - 3, AT, AT + 5, AT + PAGES - 1, SIZE - 7)
    ranges = [(at, n) for at in starts for n in (0, 1, 7, 4097, 2 * PAGES, SIZE - at) if at + n <= SIZE]
    whole = content()
    with SourceFiles() as sources, (tmp_path / "b").open("wb", buffering=0) as writer:
        writer.write(b"head")
        for offset, nbytes in ranges:
            slot = slot_of(source, offset, nbytes)
            np.testing.assert_array_equal(sources.read(slot), whole[offset:][:nbytes])
            sources.copy(slot, writer)
        writer.truncate(writer.tell())
    expected = b"".join(whole[offset:][:nbytes].tobytes() for offset, nbytes in ranges)
    assert (tmp_path / "b").read_bytes() == b"head" + expected


def test_holes_stay_holes(source: Path, tmp_path: Path) -> None:
    if not hasattr(os, "SEEK_DATA") or 512 * source.stat().st_blocks >= SIZE:
        return
    with SourceFiles() as sources, (tmp_path / "b").open("wb", buffering=0) as writer:
        sources.copy(slot_of(source, 0, SIZE), writer)
        sources.copy_rows_apart(replace(slot_of(source, 0, AT), shape=(4, AT // 4)), writer)
        writer.truncate(writer.tell())
    copied = (tmp_path / "b").stat()
    assert copied.st_size == SIZE + AT and 512 * copied.st_blocks < 2 * PAGES


@pytest.mark.parametrize("rows", [2, 6, 200])
def test_rows_with_even_numbers_come_first(
    rows: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "_BLOCK_BYTES", 4096)
    slot = replace(slot_of(source, AT - 333, rows * 777), shape=(rows, 777))
    with SourceFiles() as sources, (tmp_path / "b").open("wb", buffering=0) as writer:
        sources.copy_rows_apart(slot, writer)
    whole = content()[slot.offset :][: slot.nbytes].reshape(slot.shape)
    assert (tmp_path / "b").read_bytes() == whole[0::2].tobytes() + whole[1::2].tobytes()


def test_a_file_that_ends_before_the_tensor_is_refused(source: Path, tmp_path: Path) -> None:
    with SourceFiles() as sources, (tmp_path / "b").open("wb", buffering=0) as writer:
        for call in (lambda slot: sources.copy(slot, writer), sources.read):
            with pytest.raises(CheckpointError, match=r"a\.safetensors: ends inside tensor a"):
                call(slot_of(source, AT, SIZE))
