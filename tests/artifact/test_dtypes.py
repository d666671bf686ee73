"""The table of element types against the packages that define the names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError

QUANTIZED = (DType.INT4, DType.FLOAT4E2M1, DType.FLOAT8E4M3FN)


@pytest.mark.parametrize("dtype", DType)
def test_onnx_agrees(dtype: DType) -> None:
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    assert dtype.onnx == onnx.TensorProto.DataType.Value(names.get(dtype.value, dtype.value.upper()))
    assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx) == dtype.numpy
    assert DType.from_onnx(dtype.onnx) is dtype


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in QUANTIZED])
def test_safetensors_agrees(dtype: DType, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"x": np.ones((3,), dtype.numpy)}, path)
    assert f'"{dtype.safetensors}"'.encode() in path.read_bytes()
    assert load_file(path)["x"].dtype == dtype.numpy
    assert DType.from_safetensors(dtype.safetensors) is dtype


@pytest.mark.parametrize("dtype", DType)
def test_numpy_agrees(dtype: DType) -> None:
    assert DType.from_numpy(dtype.numpy) is dtype
    assert dtype.itemsize == np.zeros(2, dtype.numpy).nbytes // 2
    assert dtype.nbytes(3) == (2 if dtype in (DType.INT4, DType.FLOAT4E2M1) else 3 * dtype.itemsize)
    assert dtype.is_floating == dtype.value.endswith(("float16", "float32", "float64"))
    assert DType.parse(dtype.value) is dtype


@pytest.mark.parametrize("name", ["float8", "BF16", "", None, 3, ["float32"]])
def test_unknown_names_are_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(UnsupportedError, match="bfloat16"):
        DType.parse(name)


def test_foreign_types_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="F8_E5M2"):
        DType.from_safetensors("F8_E5M2")
    with pytest.raises(UnsupportedError, match="19"):
        DType.from_onnx(onnx.TensorProto.FLOAT8E5M2)
    with pytest.raises(UnsupportedError, match="complex64"):
        DType.from_numpy(np.dtype(np.complex64))
    with pytest.raises(UnsupportedError, match=">f4"):
        DType.from_numpy(np.dtype(">f4"))
