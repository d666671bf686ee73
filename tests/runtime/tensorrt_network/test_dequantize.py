"""All numbers of each type of 8 and 4 bits, as an artifact stores them: their products with scales, exactly."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

from tests.runtime.tensorrt_network.small_network import Parser, Small, computed

E4M3 = np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
# By ONNX type, all finite numbers in rows of 16.
NUMBERS: dict[int, np.ndarray] = {
    TensorProto.INT8: np.arange(-128, 128).reshape(-1, 16),
    TensorProto.INT4: np.arange(-8, 8).reshape(1, 16),
    TensorProto.FLOAT8E4M3FN: np.nan_to_num(E4M3).reshape(-1, 16),
    TensorProto.FLOAT4E2M1: np.arange(16).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(float).reshape(1, 16),
}
STORED = {
    TensorProto.INT8: np.int8,
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}


def constant(name: str, kind: int, numbers: np.ndarray) -> onnx.TensorProto:
    """``numbers`` as raw bytes of ``kind``, two of 4 bits in one, as the parser reads them from an artifact."""
    codes: np.ndarray = numbers.astype(STORED[kind]).view(np.uint8).reshape(-1)
    if kind in (TensorProto.INT4, TensorProto.FLOAT4E2M1):
        codes = codes[::2] & 15 | codes[1::2] << 4
    return helper.make_tensor(name, kind, numbers.shape, codes.tobytes(), raw=True)


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser()


@pytest.mark.parametrize("kind", NUMBERS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_number_times_the_scale_of_its_block(kind: int, dtype: type, parser: Parser, tmp_path: Path) -> None:
    numbers = NUMBERS[kind]
    scales: np.ndarray = np.random.default_rng(0).uniform(0.01, 2, (len(numbers), 2)).astype(dtype)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], axis=1, block_size=8),
        helper.make_node("Add", ["wide", "x"], ["y"]),
    ]
    x: dict[str, np.ndarray] = {"x": np.zeros([1, 1], dtype)}
    case = Small(nodes, x, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))})
    case.constants = {"w": constant("w", kind, numbers), "scale": scales}
    found = computed(parser.network(case.model(), tmp_path), x)["y"]
    expected = numbers.astype(np.float64) * scales.astype(np.float64).repeat(8, 1)
    np.testing.assert_array_equal(found, expected.astype(dtype))


def test_scales_of_e4m3_have_a_scale(parser: Parser, tmp_path: Path) -> None:
    """NVFP4: blocks of e2m1 with scales of e4m3, and one float32 for all."""
    numbers = NUMBERS[TensorProto.FLOAT4E2M1].repeat(3, 0)
    scales = np.array([[0.5, 448], [2**-9, 1.125], [3, 0]])
    nodes = [
        helper.make_node("DequantizeLinear", ["s", "all"], ["scale"]),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], axis=1, block_size=8),
        helper.make_node("Add", ["wide", "x"], ["y"]),
    ]
    x, of_all = {"x": np.zeros([1, 1], np.float32)}, np.array(0.3, np.float32)
    case = Small(nodes, x, {"y": TensorProto.FLOAT})
    weights, own = constant("w", TensorProto.FLOAT4E2M1, numbers), constant("s", TensorProto.FLOAT8E4M3FN, scales)
    case.constants = {"w": weights, "s": own, "all": of_all}
    found = computed(parser.network(case.model(), tmp_path), x)["y"]
    blocks = (scales * np.float64(of_all)).astype(np.float32).repeat(8, 1)
    np.testing.assert_array_equal(found, (numbers * blocks).astype(np.float32))
