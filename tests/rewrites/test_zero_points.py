"""Zero points lowered to separate products: in ONNX Runtime against float64, and in engines that stay small."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from hybridge.trt_plugins.rewrites.zero_points import without_zero_points
from tests.support.versions import needs_opset_24

TYPES = {4: TensorProto.INT4, 8: TensorProto.INT8}


@dataclass(frozen=True)
class Weight:
    """Integers of ``bits`` [rows, columns]; scales and zero points per ``block`` columns, row (0) or matrix (-1)."""

    bits: int
    block: int
    rows: int = 24
    columns: int = 64

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers, scales and zero points."""
        random, top = np.random.default_rng(self.bits * 1000 + self.block), 1 << (self.bits - 1)
        shape = (self.rows, self.columns // self.block) if self.block > 0 else (self.rows,)[: self.block + 1]
        numbers = random.integers(-top, top, (self.rows, self.columns))
        return numbers, (random.random(shape) * 0.02 + 0.01).astype(np.float16), random.integers(-top, top, shape)

    def meaning(self) -> np.ndarray:
        """float64 [rows, columns]."""
        numbers, scales, zeros = self.arrays()

        def spread(items: np.ndarray) -> np.ndarray:
            return np.repeat(items, self.block, axis=1) if self.block > 0 else items.reshape(-1, 1)

        return (numbers - spread(zeros)) * spread(scales).astype(np.float64)

    def model(self, dtype: int, reader: str) -> onnx.ModelProto:
        """As the exporter writes y = x · weightᵀ or, with the ``reader`` Gather, the rows x of the weight."""
        numbers, scales, zeros = self.arrays()
        of = {0: {"axis": 0}, -1: {}}.get(self.block, {"axis": 1, "block_size": self.block})
        nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **of)]
        if reader == "MatMul":
            nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", ["x", "wt"], ["y"]))
            x, width = helper.make_tensor_value_info("x", dtype, ["batch", "seq", self.columns]), self.rows
        else:
            nodes.append(helper.make_node("Gather", ["w", "x"], ["y"]))
            x, width = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", "seq"]), self.columns
        y = helper.make_tensor_value_info("y", dtype, ["batch", "seq", width])
        w = helper.make_tensor_value_info("w", dtype, numbers.shape)
        stored = [
            helper.make_tensor(name, kind, array.shape, array.ravel().tolist())
            for name, kind, array in (
                ("q", TYPES[self.bits], numbers),
                ("s", dtype, scales),
                ("z", TYPES[self.bits], zeros),
            )
        ]
        graph = helper.make_graph(nodes, "g", [x], [y], stored, value_info=[w])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=12)


@needs_opset_24
@pytest.mark.parametrize("reader", ["MatMul", "Gather"])
@pytest.mark.parametrize("block", [16, 32, 0, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_result_is_unchanged(bits: int, block: int, reader: str) -> None:
    weight = Weight(bits, block)
    found = without_zero_points(weight.model(TensorProto.FLOAT, reader))
    onnx.checker.check_model(found)
    # DequantizeLinear of weights; that of the zero points has no zero points.
    assert all(len(node.input) == 2 for node in found.graph.node if node.op_type == "DequantizeLinear")
    random, meaning = np.random.default_rng(0), weight.meaning()
    rows = random.integers(0, weight.rows, (2, 3))
    x = random.standard_normal((2, 3, weight.columns), np.float32)
    session = ort.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x if reader == "MatMul" else rows})
    expected = x.astype(np.float64) @ meaning.T if reader == "MatMul" else meaning[rows]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_model_without_zero_points_stays_as_it_is() -> None:
    model = Weight(4, 16).model(TensorProto.FLOAT16, "MatMul")
    del model.graph.node[0].input[2]
    assert without_zero_points(model) is model


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 0), (8, 0)])
def test_an_engine_keeps_the_numbers_packed(bits: int, block: int) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    weight = Weight(bits, block, 2048, 2048)
    found = without_zero_points(weight.model(TensorProto.FLOAT16, "MatMul"))
    from hybridge.trt_plugins.build.build_log import make_logger

    logger = make_logger(trt, io.StringIO())
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(found.SerializeToString()), parser.get_error(0).desc()
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    profile.set_shape("x", (1, 1, 2048), (1, 4, 2048), (2, 8, 2048))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None
    packed = 2048 * 2048 * bits // 8
    # Unpacked numbers have 16 bits each. Scales and offsets per 32 columns take up to two thirds of 4-bit numbers.
    assert packed < engine.nbytes < packed * 1.7 + 300_000 < 2 * 2048 * 2048
