"""derived.safetensors: the safetensors package reads what was written; bad values never reach the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.weights import write_derived as write_tensors
from hybridge.exporter.weights.derived import DerivedTensor
from tests.artifact.samples import sample_tensors


def write_derived(folder: Path, arrays: Mapping[str, np.ndarray]) -> Mapping[str, TensorSlot]:
    return write_tensors(folder, {name: DerivedTensor.of(array) for name, array in arrays.items()})


def test_the_package_reads_it(tmp_path: Path) -> None:
    tensors = sample_tensors()
    slots = write_derived(tmp_path, tensors)
    path = tmp_path / "weights" / "derived.safetensors"
    loaded = load_file(path)
    assert set(loaded) == set(slots) == set(tensors)
    for name, expected in tensors.items():
        assert loaded[name].dtype == expected.dtype and loaded[name].shape == expected.shape
        np.testing.assert_array_equal(loaded[name], expected)
        np.testing.assert_array_equal(slots[name].map(), expected)
        assert slots[name].path == path


def test_every_tensor_is_aligned_to_its_elements(tmp_path: Path) -> None:
    tensors = {
        "a": np.ones(3, np.float16),
        "b": np.ones(3, np.float32),
        "c": np.ones(1, np.int8),
        "d": np.ones(3, np.float64),
        "e": np.ones(5, DType.BFLOAT16.numpy),
    }
    slots = write_derived(tmp_path, tensors).values()
    assert all(slot.offset % slot.dtype.itemsize == 0 for slot in slots)
    assert min(slot.offset for slot in slots) % 64 == 0


def test_views_are_written_in_order(tmp_path: Path) -> None:
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    slots = write_derived(tmp_path, {"t": value.T, "s": value[:, ::2], "r": value[::-1]})
    np.testing.assert_array_equal(slots["t"].map(), value.T)
    np.testing.assert_array_equal(slots["s"].map(), value[:, ::2])
    np.testing.assert_array_equal(slots["r"].map(), value[::-1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, bad: float, dtype: DType) -> None:
    value = np.ones((3, 5), dtype.numpy)
    value[1, 2] = bad
    with pytest.raises(CheckpointError, match=r"the tensor layers\.0\.A, .* at index \[1, 2\]"):
        write_derived(tmp_path, {"good": np.ones(2, np.float32), "layers.0.A": value})
    assert not (tmp_path / "weights").exists()


def test_same_tensors_same_bytes(tmp_path: Path) -> None:
    tensors = sample_tensors()
    for folder, ordered in (("a", tensors), ("b", dict(reversed(tensors.items())))):
        (tmp_path / folder).mkdir()
        write_derived(tmp_path / folder, ordered)
    name = Path("weights", "derived.safetensors")
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
