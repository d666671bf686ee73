"""Embedding tables stay as they are stored; only the rows of a step become float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.artifact.dtypes import DType
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph

E4M3 = DType.FLOAT8E4M3FN
FORMS = {
    "int4 by 16 with zeros": Form(DType.INT4, 16, zeros=True, scales=DType.BFLOAT16),
    "int4, one scale": Form(DType.INT4, 0, zeros=True),
    "int8 by row": Form(DType.INT8, None),
    "int8 by 12 with zeros": Form(DType.INT8, 12, zeros=True),
    "e4m3 by row": Form(E4M3, None),
    "nvfp4": Form(DType.FLOAT4E2M1, 16, scales=E4M3, is_scaled_twice=True),
}
ROWS, COLUMNS = 50, 48


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("ids", [np.array([[49, 0, 7], [7, 7, 1]]), np.array([3]), np.zeros((2, 0), int)])
def test_rows_of_a_quantised_table(name: str, ids: np.ndarray, tmp_path: Path) -> None:
    form = FORMS[name]
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("table", form, ROWS, COLUMNS)
    axes = ["batch", "seq"][: ids.ndim]
    made.rows("y", made.input("ids", ir.DataType.INT64, *axes), matrix)
    session, store, _ = made.session()
    (y,) = session.run(None, {"ids": ids.astype(np.int64)})
    np.testing.assert_allclose(y, meant[ids], rtol=1e-6, atol=1e-9)
    groups = COLUMNS // form.group if form.group else 1
    scales = 2 * ROWS * groups if form.group and form.scales is DType.BFLOAT16 else 0  # looked up as stored
    assert store.mapped_bytes == form.dtype.nbytes(ROWS * COLUMNS) + scales
    assert store.copied_bytes <= 4 * ROWS * groups * (form.zeros + (not scales))


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_rows_of_a_table_of_16_bits(dtype: DType, tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    table = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(dtype.numpy)
    value = made.stored("table", table, dtype)
    value.type = ir.TensorType(ir.DataType.FLOAT)  # as widen_types leaves it
    made.rows("y", made.input("ids", ir.DataType.INT64, "tokens"), value)
    session, store, _ = made.session()
    ids = np.array([0, ROWS - 1, 3, 3])
    np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], table[ids].astype(np.float32))
    assert (store.mapped_bytes, store.copied_bytes) == (table.nbytes, 0)


def test_a_tied_head_multiplies_with_the_packed_table(tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    matrix, meant = made.matrix("table", Form(DType.INT8, 16), ROWS, COLUMNS)
    made.rows("rows", made.input("ids", ir.DataType.INT64, "tokens"), matrix)
    made.product("logits", made.input("x", ir.DataType.FLOAT, "tokens", COLUMNS), matrix)
    session, store, types = made.session()
    assert types.count("MatMulNBits") == 1 and "FusedMatMul" not in types
    x = np.eye(COLUMNS, dtype=np.float32)[:4] * 127.0  # rounding changes nothing
    rows, logits = session.run(None, {"ids": np.array([5, 0, 1, 2]), "x": x})
    np.testing.assert_allclose(rows, meant[[5, 0, 1, 2]], rtol=1e-6)
    np.testing.assert_allclose(logits, x @ meant.T, rtol=1e-5)
    assert store.mapped_bytes == ROWS * COLUMNS


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_a_tied_head_of_16_bits_is_never_widened(dtype: DType, tmp_path: Path) -> None:
    made, random = QuantizedGraph(tmp_path), np.random.default_rng(0)
    table = random.standard_normal((1100, 64)).astype(dtype.numpy)
    x = random.standard_normal((3, 64), np.float32)
    value = made.stored("table", table, dtype)
    value.type = ir.TensorType(ir.DataType.FLOAT)  # as widen_types leaves it
    made.rows("rows", made.input("ids", ir.DataType.INT64, "tokens"), value)
    made.product("logits", made.input("x", ir.DataType.FLOAT, "tokens", 64), value)
    session, store, types = made.session(linear=True)
    assert types.count("Linear") == 1
    ids = np.array([1099, 0, 5])
    rows, logits = session.run(None, {"ids": ids, "x": x})
    np.testing.assert_array_equal(rows, table[ids].astype(np.float32))
    np.testing.assert_allclose(logits, x.astype(np.float64) @ table.astype(np.float64).T, rtol=1e-5, atol=1e-5)
    # The product and the lookup read the same pages of the file.
    assert (store.mapped_bytes, store.copied_bytes) == (table.nbytes, 0)
