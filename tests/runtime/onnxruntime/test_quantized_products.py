"""Products with quantised weights read the packed numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph

E4M3 = DType.FLOAT8E4M3FN
# Each with its columns and the kernel's block size: inputs are rounded with one scale per block.
FORMS = {
    "int4 by 16": (Form(DType.INT4, 16), 96, 16),
    "int4 by 48 with zeros": (Form(DType.INT4, 48, zeros=True), 144, 16),
    "int4 by 256": (Form(DType.INT4, 256, zeros=True), 256, 128),
    "int4 by row, padded": (Form(DType.INT4, None), 84, 32),
    "int4 by row with zeros": (Form(DType.INT4, None, zeros=True), 84, 32),
    "int4, one scale": (Form(DType.INT4, 0), 42, 32),
    "int8 by 128": (Form(DType.INT8, 128, scales=DType.BFLOAT16), 256, 32),
    "int8 by 32 with zeros": (Form(DType.INT8, 32, zeros=True), 96, 32),
    "int8 by row with zeros": (Form(DType.INT8, None, zeros=True), 83, 32),
    "nvfp4": (Form(DType.FLOAT4E2M1, 16, scales=E4M3, is_scaled_twice=True), 48, 16),
    "mxfp4": (Form(DType.FLOAT4E2M1, 32), 64, 32),
}
ROWS = 37


def inputs(columns: int) -> np.ndarray:
    """[7, columns] with a row of zeros, one with an outlier and one with a single number."""
    x = np.random.default_rng(columns).standard_normal((7, columns)).astype(np.float32)
    x[1], x[3] = 0.0, 0.0
    x[2, 5], x[3, -1] = 900.0, -1.5
    return x


@pytest.mark.parametrize("name", FORMS)
def test_rounds_its_input_by_blocks_and_nothing_else(name: str, tmp_path: Path) -> None:
    form, columns, block = FORMS[name]
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("w", form, ROWS, columns)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", columns), matrix)
    session, _, types = made.session()
    assert types == ["MatMulNBits"]
    x = inputs(columns)
    wide = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, -columns % block))).reshape(len(x), -1, block)
    # Half of an 8-bit step: the largest number of each block divided by 254.
    step = np.repeat(wide.max(2) / 254, block, axis=1)[:, :columns]
    expected = x.astype(np.float64) @ meant.T
    bound = step @ np.abs(meant.T) + 1e-5 * (np.abs(x) @ np.abs(meant.T))
    for rows in (slice(0, 7), slice(2, 3), slice(0, 0)):
        (y,) = session.run(None, {"x": x[rows]})
        assert y.shape == (len(x[rows]), ROWS)
        assert (np.abs(y - expected[rows]) <= bound[rows]).all()


@pytest.mark.parametrize("name", FORMS)
def test_exact_products_round_nothing(name: str, tmp_path: Path) -> None:
    form, columns, _ = FORMS[name]
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("w", form, ROWS, columns)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", columns), matrix)
    x = inputs(columns)
    (y,) = made.run({"x": x}, exact=True)
    assert (np.abs(y - x.astype(np.float64) @ meant.T) <= 1e-6 * (np.abs(x) @ np.abs(meant.T))).all()


def test_other_types_are_dequantised(tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("w", Form(E4M3, None), ROWS, 48)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 48), matrix)
    session, store, types = made.session()
    assert types == ["FusedMatMul"] and store.copied_bytes == 4 * ROWS * 48
    x = inputs(48)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x.astype(np.float64) @ meant.T, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not installed_kernels().packs_blocks, reason="this ONNX Runtime reads the matrix in each run")
@pytest.mark.parametrize("dtype", [DType.INT4, DType.INT8])
def test_packed_numbers_lie_in_memory_once(dtype: DType, tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("w", Form(dtype, 32), 64, 128)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 128), matrix)
    session, store, _ = made.session()
    assert (store.copied_bytes, store.mapped_bytes) == (4 * 64 * 128 // 32, 0)  # the scales
    x = inputs(128)
    first = session.run(None, {"x": x})[0]
    waste = [np.full(64 * 128 // part, 0xFF, np.uint8) for part in (1, 1, 2, 2)]  # over what the session has freed
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], first)
    assert waste and np.abs(first - x.astype(np.float64) @ meant.T).max() < 0.05 * np.abs(first).max()
