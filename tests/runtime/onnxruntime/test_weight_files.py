"""Tensors in mapped files of an artifact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.onnxruntime.session_graph import StoredTensor
from hybridge.runtime.engines.onnxruntime.weight_files import WeightFiles


def tensor(offset: int, nbytes: int, location: str = "a.bin") -> StoredTensor:
    return StoredTensor(location, offset, DType.UINT8, (nbytes,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a.bin", "b.bin")):
        np.random.default_rng(seed).integers(0, 256, 5 * MIB, np.uint8).tofile(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1), (4097, 333), (8, MIB), (4 * MIB + 1, MIB - 1), (7, 0)])
def test_bytes_are_those_of_the_file(offset: int, nbytes: int, folder: Path) -> None:
    expected = np.fromfile(folder / "a.bin", np.uint8)[offset : offset + nbytes]
    wanted = tensor(offset, nbytes)
    with WeightFiles(folder).open() as files:
        copied = np.empty(nbytes, np.uint8)
        files.read(wanted, copied)
        found = [files.mapped(wanted), files.bytes_of(wanted)]
    for each in (*found, copied):  # maps outlive the open file
        np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize("nbytes", [2, MIB])
def test_a_tensor_beyond_the_end_is_refused(nbytes: int, folder: Path) -> None:
    wanted = tensor(5 * MIB - nbytes + 1, nbytes)
    with WeightFiles(folder).open() as files:
        for read in (files.mapped, files.bytes_of, lambda each: files.read(each, np.empty(nbytes, np.uint8))):
            with pytest.raises(ArtifactError, match=rf"expected {5 * MIB + 1} bytes, found {5 * MIB}.*truncated"):
                read(wanted)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    with WeightFiles(tmp_path).open() as files, pytest.raises(ArtifactError, match="expected 4 bytes, found 0"):
        files.mapped(tensor(0, 4))


def test_tensors_that_are_close_in_a_file_are_one_part(folder: Path) -> None:
    files = WeightFiles(folder)
    apart = 2 * MIB + 1
    wanted = [tensor(200, 50), tensor(0, 100), tensor(100, 10, "b.bin"), tensor(250 + apart, 8), tensor(210, 20)]
    with files.open() as opened:
        starts = {each.location: opened.mapped(each).ctypes.data - each.offset for each in wanted}
    found = [(part.ctypes.data, part.nbytes) for part in files.parts(wanted)]
    a, b = starts["a.bin"], starts["b.bin"]
    assert found == [(a, 250), (a + 250 + apart, 8), (b + 100, 10)]
    assert files.parts([]) == []
