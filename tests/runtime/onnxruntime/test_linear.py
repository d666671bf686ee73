"""The operator Linear of our CPU library against float64: every type, instruction set and tile, odd sizes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.dtypes import DType
from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.onnxruntime import page_moves
from hybridge.runtime.engines.onnxruntime import weights as weights_module
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.linear_form import TYPES
from hybridge.runtime.engines.onnxruntime.linear_tiles import scale_dtype as tile_scale_dtype
from hybridge.runtime.engines.onnxruntime.linear_tiles import tile_zeros, tiles_shape, write_tiles
from hybridge.runtime.engines.onnxruntime.page_moves import PageMover
from hybridge.runtime.engines.onnxruntime.session_graph import QuantizedMatrix, StoredTensor
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph, numbers, stored_bytes

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
PORTABLE, AVX2, AVX512 = 1, 2, 3
BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


@dataclass(frozen=True)
class Matrix:
    """A weight in the form that Linear reads, and what it means in float64 [rows, columns]."""

    dtype: DType
    data: np.ndarray
    group: int
    scale_dtype: DType
    meant: np.ndarray
    scales: np.ndarray | None = None
    zeros: np.ndarray | None = None


def matrix(
    dtype: DType,
    rows: int,
    columns: int,
    group: int | None,
    scale_dtype: DType = DType.BFLOAT16,
    has_zeros: bool = False,
) -> Matrix:
    """Random; group None: one scale for each row, 0: one for all. e4m3 scales have a global scale."""
    random = np.random.default_rng(rows + columns)
    if dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32):
        values = random.standard_normal((rows, columns)).astype(dtype.numpy)
        return Matrix(dtype, values.view(np.uint8).reshape(rows, -1), 0, DType.FLOAT32, values.astype(np.float64))
    values = numbers(dtype, rows * columns, random).reshape(rows, columns)
    groups = 1 if not group else columns // group
    scales = random.uniform(2e-2, 9e-2, (1 if group == 0 else rows, groups)).astype(scale_dtype.numpy)
    factor = np.float32(0.375 if scale_dtype is DType.FLOAT8E4M3FN else 1)
    wide = np.broadcast_to(scales.astype(np.float64), (rows, groups))
    meant = values * np.repeat(wide, columns // groups, axis=1) * float(factor)
    stored = np.frombuffer(stored_bytes(values, dtype), np.uint8).reshape(rows, -1)
    if dtype is DType.FLOAT8E4M3FN:
        return Matrix(dtype, stored, columns // groups, DType.FLOAT32, meant, wide.astype(np.float32))
    shape = () if group == 0 else (rows, groups) if group else (rows,)
    given = {"numbers": stored, "scales": scales}
    stored_matrix = QuantizedMatrix(
        StoredTensor("numbers", 0, dtype, (rows, columns)), StoredTensor("scales", 0, scale_dtype, shape)
    )
    zeros = None
    if has_zeros:
        points = numbers(dtype, scales.size, random).reshape(scales.shape)
        given["zeros"] = np.frombuffer(stored_bytes(points, dtype), np.uint8)
        stored_matrix = replace(stored_matrix, zero_points=StoredTensor("zeros", 0, dtype, shape))
        meant = meant - np.repeat(np.broadcast_to(points, wide.shape) * wide, columns // groups, axis=1)
        zeros = tile_zeros(stored_matrix, 0, lambda tensor: given[tensor.location].reshape(-1).view(np.uint8))
    tiles = np.full(tiles_shape(stored_matrix), 0xFF, np.uint8)

    def fill(tensor: StoredTensor, out: np.ndarray) -> None:
        out.reshape(-1)[:] = given[tensor.location].reshape(-1)[tensor.offset : tensor.offset + out.nbytes]

    write_tiles(stored_matrix, lambda tensor: given[tensor.location].reshape(-1).view(np.uint8), fill, tiles)
    factors = None if factor == 1 else np.full((rows, 1), factor)
    return Matrix(dtype, tiles, columns // groups, tile_scale_dtype(stored_matrix), meant, factors, zeros)


def product(
    weight: Matrix, x: np.ndarray, block: int = 0, exact: bool = False, instructions: int = 0, threads: int = 1
) -> np.ndarray:
    """Linear's output, written over NaN; skips where the processor lacks the ``instructions``."""
    rows = len(weight.meant)
    types = {"type": TYPES[weight.dtype], "scale_type": TYPES[weight.scale_dtype]}
    sizes = {"rows": rows, "group": weight.group, "block": block}
    options = {"exact": int(exact), "instructions": instructions}
    given = {"w": weight.data, "scales": weight.scales, "zeros": weight.zeros}
    initializers = [numpy_helper.from_array(array, name) for name, array in given.items() if array is not None]
    names = ["x", *("" if array is None else name for name, array in given.items())]
    node = helper.make_node("Linear", names, ["y"], domain="hybridge.cpu", **types, **sizes, **options)
    shapes = {"x": [None] * (x.ndim - 1) + [x.shape[-1]], "y": [None] * (x.ndim - 1) + [rows]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph([node], "linear", [values["x"]], [values["y"]], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("hybridge.cpu", 1)]
    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads, session_options.log_severity_level = threads, 4
    session_options.register_custom_ops_library(str(cpu_library().path))
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        session = ort.InferenceSession(model.SerializeToString(), session_options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "instructions that this processor has" in str(error):
            pytest.skip("this processor lacks the instructions")
        raise
    y = np.full((*x.shape[:-1], rows), np.nan, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))
    session.run_with_iobinding(binding)
    return y


def inputs(count: int, columns: int) -> np.ndarray:
    """[count, columns]: ordinary rows, and among them one of zeros, one with an outlier and one of tiny numbers."""
    x = np.random.default_rng(columns).standard_normal((count, columns)).astype(np.float32)
    for row, scale in ((1, 0.0), (2, 1e-30), (4, 1e30)):
        x[row:][:1] *= np.float32(scale)
    x[3:][:1, 5] = 900.0
    return x


def rounding_step(x: np.ndarray, block: int) -> np.ndarray:
    """Half of an 8-bit step of each input: the largest of its block divided by 254."""
    largest = np.abs(x.astype(np.float64)).reshape(len(x), x.shape[1] // block, block).max(2)
    return np.repeat(largest / 254, block, axis=1)


# Type, columns, numbers that share a scale, inputs of a block, type of scales, whether there are zero points.
QUANTIZED: dict[str, tuple[Any, ...]] = {
    "int4 by 16": (DType.INT4, 48, 16, 16, DType.FLOAT16),
    "int4 by 32": (DType.INT4, 672, 32, 32, DType.BFLOAT16),
    "int4 by 48": (DType.INT4, 144, 48, 16, DType.FLOAT32),
    "int4 by 64": (DType.INT4, 320, 64, 64, DType.BFLOAT16),
    "int4 by 128": (DType.INT4, 640, 128, 128, DType.BFLOAT16),
    "int4 by row": (DType.INT4, 96, None, 32, DType.FLOAT16),
    "int4, one scale": (DType.INT4, 96, 0, 32, DType.FLOAT32),
    "int4 by 32 with zeros": (DType.INT4, 160, 32, 32, DType.FLOAT16, True),
    "int4 by row with zeros": (DType.INT4, 96, None, 32, DType.FLOAT32, True),
    "int4 with one zero": (DType.INT4, 96, 0, 16, DType.FLOAT32, True),
    "int8 by 16": (DType.INT8, 48, 16, 16, DType.FLOAT16),
    "int8 by 32": (DType.INT8, 608, 32, 32, DType.BFLOAT16),
    "int8 by 128": (DType.INT8, 384, 128, 32, DType.BFLOAT16),
    "int8 by row": (DType.INT8, 96, None, 32, DType.FLOAT32),
    "int8 by 64 with zeros": (DType.INT8, 320, 64, 32, DType.FLOAT16, True),
    "int8 by row with zeros": (DType.INT8, 96, None, 32, DType.FLOAT32, True),
    "e2m1 by 16": (DType.FLOAT4E2M1, 208, 16, 16, DType.FLOAT8E4M3FN),
    "e2m1 by 32": (DType.FLOAT4E2M1, 672, 32, 32, DType.BFLOAT16),
    "e2m1 by 128": (DType.FLOAT4E2M1, 384, 128, 128, DType.FLOAT32),
}
# e4m3: type, columns, numbers that share a scale, no block, type of scales.
SCALED: dict[str, tuple[Any, ...]] = {
    "e4m3 by 128": (DType.FLOAT8E4M3FN, 640, 128, 0, DType.FLOAT32),
    "e4m3 by 24": (DType.FLOAT8E4M3FN, 72, 24, 0, DType.BFLOAT16),
    "e4m3 by row": (DType.FLOAT8E4M3FN, 603, None, 0, DType.FLOAT16),
    "e4m3, one scale": (DType.FLOAT8E4M3FN, 97, 0, 0, DType.FLOAT32),
}


@pytest.mark.parametrize("instructions", [PORTABLE, AVX2, AVX512])
@pytest.mark.parametrize("name", QUANTIZED)
def test_rounds_inputs_by_blocks_and_nothing_else(name: str, instructions: int) -> None:
    dtype, columns, group, block, scales, *has_zeros = QUANTIZED[name]
    for rows in (1, 37):
        weight = matrix(dtype, rows, columns, group, scales, bool(has_zeros))
        for count in (0, 1, 7, 33):
            x = inputs(count, columns)
            y = product(weight, x, block, instructions=instructions, threads=1 + count % 2)
            size = np.abs(x.astype(np.float64)) @ np.abs(weight.meant.T)
            bound = rounding_step(x, block) @ np.abs(weight.meant.T) + 1e-5 * size
            assert (np.abs(y - x.astype(np.float64) @ weight.meant.T) <= bound).all()


@pytest.mark.parametrize("instructions", [PORTABLE, AVX2, AVX512])
@pytest.mark.parametrize("name", [*QUANTIZED, *SCALED, "float16", "bfloat16", "float32"])
def test_exact_products_and_floats_round_nothing(name: str, instructions: int) -> None:
    floats = None if name in QUANTIZED or name in SCALED else (DType(name), 603, None, 0, DType.FLOAT32)
    dtype, columns, group, block, scales, *has_zeros = floats or (QUANTIZED | SCALED)[name]
    for rows in (1, 37):
        weight = matrix(dtype, rows, columns, group, scales, bool(has_zeros))
        for count in (1, 2, 5, 7, 33):
            x = inputs(count, columns)
            y = product(weight, x, block, exact=True, instructions=instructions, threads=1 + count % 2)
            size = np.abs(x.astype(np.float64)) @ np.abs(weight.meant.T)
            # float32 sums of 672 products round at most so much, as a random walk of 2**-24 each.
            assert (np.abs(y - x.astype(np.float64) @ weight.meant.T) <= 672**0.5 * 2.0**-24 * size).all()


@pytest.mark.parametrize("instructions", [PORTABLE, AVX2, AVX512])
@pytest.mark.parametrize("count", [773, 1601])
def test_prompts_of_more_inputs_than_are_summed_at_once(count: int, instructions: int) -> None:
    weight, x = matrix(DType.BFLOAT16, 81, 323, None, DType.FLOAT32), inputs(count, 323)
    y = product(weight, x, instructions=instructions, threads=2)
    size = np.abs(x.astype(np.float64)) @ np.abs(weight.meant.T)
    assert (np.abs(y - x.astype(np.float64) @ weight.meant.T) <= 323**0.5 * 2.0**-24 * size).all()


def test_a_float16_weight_keeps_its_smallest_and_largest_numbers() -> None:
    values = np.array([[6e-8, -6.1e-5, 65504.0, -1.0, 0.0, 3.05e-5, 1e-7]], np.float16)
    weight = Matrix(DType.FLOAT16, values.view(np.uint8), 0, DType.FLOAT32, values.astype(np.float64))
    for instructions in (PORTABLE, 0):
        found = product(weight, np.eye(7, dtype=np.float32), instructions=instructions)
        np.testing.assert_array_equal(found[:, 0], values[0].astype(np.float32))


@pytest.mark.parametrize("instructions", [PORTABLE, AVX2, AVX512])
def test_every_e4m3_number_keeps_its_value(instructions: int) -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    # One number in each row: NaN stays in its row.
    weight = Matrix(
        DType.FLOAT8E4M3FN, codes[:, None], 1, DType.FLOAT32, values[:, None], np.full((256, 1), 0.5, np.float32)
    )
    for count in (1, 4, 40):
        found = product(weight, np.full((count, 1), 2.0, np.float32), instructions=instructions)
        np.testing.assert_array_equal(found, np.broadcast_to(values, (count, 256)))
    assert np.isnan(values).sum() == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_gives_nan(value: float) -> None:
    weight, x = matrix(DType.INT4, 5, 96, 32), inputs(17, 96)
    x[9, 40] = value
    for count in (17, 10):
        y = product(weight, x[:count], 32)
        assert np.isnan(y[9]).all() and np.isfinite(np.delete(y, 9, 0)).all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    weight, x = matrix(DType.INT4, 5, 96, 32), inputs(2, 96)
    for wrong, block in ((x[:, :64], 32), (x, 64), (x, 24), (x, 0)):
        with pytest.raises(Exception, match="expected x and a weight of one matrix"):
            product(weight, np.ascontiguousarray(wrong), block)
    scaled = matrix(DType.FLOAT8E4M3FN, 5, 96, 32)
    for scales in (None, np.ones((5, 2), np.float32), np.ones((1, 3), np.float32)):
        with pytest.raises(Exception, match="expected x and a weight of one matrix"):
            product(replace(scaled, scales=scales), x)


@pytest.mark.parametrize(
    ("form", "scale_bytes"),
    [
        (Form(DType.INT4, 32), 4 * 4),
        (Form(DType.INT4, 32, zeros=True), 4 * 4 + 4),
        (Form(DType.INT8, 32), 4 * 4),
        (Form(DType.INT8, 32, zeros=True), 4 * 4 + 4),
        (Form(DType.FLOAT4E2M1, 16, scales=DType.FLOAT8E4M3FN, is_scaled_twice=True), 8 * 2 + 4),
        (Form(DType.FLOAT8E4M3FN, 32, scales=DType.BFLOAT16), 4 * 4),
        (Form(DType.FLOAT8E4M3FN, 0), 4),
    ],
    ids=["int4", "int4 with zeros", "int8", "int8 with zeros", "nvfp4", "e4m3 by 32", "e4m3, one scale"],
)
def test_weights_are_laid_out_once(form: Form, scale_bytes: int, tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    weight, meant = made.matrix("w", form, 64, 128)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 128), weight)
    session, store, types = made.session(exact=True, linear=True)
    # Numbers and scales, and no other copy.
    numbers = 64 * form.dtype.nbytes(128)
    mapped = numbers if form.dtype is DType.FLOAT8E4M3FN else 0
    assert types == ["Linear"]
    assert (store.mapped_bytes, store.copied_bytes) == (mapped, numbers - mapped + 64 * scale_bytes)
    x = inputs(7, 128)
    size = np.abs(x.astype(np.float64)) @ np.abs(meant.T)
    assert (np.abs(session.run(None, {"x": x})[0] - x.astype(np.float64) @ meant.T) <= 1e-6 * size).all()


def test_other_matrices_are_left_to_other_kernels(tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    x = made.input("x", ir.DataType.FLOAT, "rows", 96)
    forms = (Form(DType.INT4, 8), Form(DType.INT8, 12, zeros=True))
    for index, form in enumerate(forms):
        made.product(f"y{index}", x, made.matrix(f"w{index}", form, 5, 96)[0])
    assert "Linear" not in made.session(linear=True)[2]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_large_weights_of_16_bits_stay_mapped_in_their_type(dtype: DType, tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    x = made.input("x", ir.DataType.FLOAT, "rows", 520)
    large = np.random.default_rng(0).standard_normal((1024, 520)).astype(dtype.numpy)
    for name, values in (("large", large), ("small", large[:7])):
        weight = made.stored(f"{name}_weight", values, dtype)
        weight.type = ir.TensorType(ir.DataType.FLOAT)  # as widen_types leaves it
        made.product(name, x, weight)
    session, store, types = made.session(linear=True)
    assert types == ["Linear", "FusedMatMul"]
    assert (store.mapped_bytes, store.copied_bytes) == (2 * large.size, 4 * 7 * 520)
    given = inputs(5, 520)
    found, _ = session.run(None, {"x": given})
    size = np.abs(given.astype(np.float64)) @ np.abs(large.astype(np.float64).T)
    assert (np.abs(found - given.astype(np.float64) @ large.astype(np.float64).T) <= 1e-6 * size).all()


def test_products_are_the_same_after_large_weights_moved_to_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "LEAST_BYTES", 1)
    monkeypatch.setattr(weights_module, "PageMover", partial(PageMover, delay=0.5))
    made = QuantizedGraph(tmp_path)
    x = made.input("x", ir.DataType.FLOAT, "rows", 1056)
    for name in ("first", "second"):
        values = np.random.default_rng(len(name)).standard_normal((2050, 1056)).astype(ml_dtypes.bfloat16)
        weight = made.stored(f"{name}_weight", values, DType.BFLOAT16)
        weight.type = ir.TensorType(ir.DataType.FLOAT)
        made.product(name, x, weight)
    session, store, types = made.session(linear=True)
    assert types == ["FusedLinear"]
    given = inputs(3, 1056)
    before = session.run(None, {"x": given})
    store.settle()
    if page_moves._has_huge_pages():
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        spans = [line.split()[0].split("-") for line in maps if line.endswith(str(tmp_path / "weights.bin"))]
        # Of 8.6 MB, only what fills no huge page at both ends is still mapped from the file.
        assert sum(int(last, 16) - int(first, 16) for first, last in spans) < 2 * 2 * MIB
    for found, expected in zip(session.run(None, {"x": given}), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_closed_store_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "LEAST_BYTES", 1)
    monkeypatch.setattr(weights_module, "PageMover", partial(PageMover, delay=600))
    made = QuantizedGraph(tmp_path)
    weight = made.stored("weight", np.zeros((2050, 1056), ml_dtypes.bfloat16), DType.BFLOAT16)
    weight.type = ir.TensorType(ir.DataType.FLOAT)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 1056), weight)
    _, store, _ = made.session(linear=True)
    assert any(thread.name == "hybridge-pages" for thread in threading.enumerate())
    store.close()
    store.settle()
    assert not any(thread.name == "hybridge-pages" for thread in threading.enumerate())


def test_16_bit_numbers_at_odd_places_of_the_file_are_copied_once(tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    made.stored("odd", np.zeros(1, np.uint8), DType.UINT8)
    values = np.random.default_rng(0).standard_normal((256, 520)).astype(np.float16)
    weight = made.stored("weight", values, DType.FLOAT16)
    weight.type = ir.TensorType(ir.DataType.FLOAT)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 520), weight)
    made.rows("rows", made.input("ids", ir.DataType.INT64, "count"), weight)  # a tied embedding
    session, store, types = made.session(linear=True)
    assert "Linear" in types and (store.mapped_bytes, store.copied_bytes) == (0, values.nbytes)
    given, ids = inputs(2, 520), np.array([255, 0])
    found, rows = session.run(None, {"x": given, "ids": ids})
    size = np.abs(given.astype(np.float64)) @ np.abs(values.astype(np.float64).T)
    expected = given.astype(np.float64) @ values.astype(np.float64).T
    assert (np.abs(found - expected) <= 1e-6 * size).all()
    np.testing.assert_array_equal(rows, values[ids])


def test_a_tied_e4m3_head_and_its_table_share_one_map(tmp_path: Path) -> None:
    made = QuantizedGraph(tmp_path)
    weight, meant = made.matrix("w", Form(DType.FLOAT8E4M3FN, None), 520, 128)
    made.product("y", made.input("x", ir.DataType.FLOAT, "rows", 128), weight)
    made.rows("rows", made.input("ids", ir.DataType.INT64, "count"), weight)
    session, store, _ = made.session(linear=True)
    x, ids = inputs(3, 128), np.array([519, 0, 7])
    y, rows = session.run(None, {"x": x, "ids": ids})
    size = np.abs(x.astype(np.float64)) @ np.abs(meant.T)
    assert (np.abs(y - x.astype(np.float64) @ meant.T) <= 1e-6 * size).all()
    np.testing.assert_allclose(rows, meant[ids], rtol=1e-7)
    # Scales have a place of their own for the table and for the product.
    assert store.bytes == meant.size + 2 * 4 * 520
