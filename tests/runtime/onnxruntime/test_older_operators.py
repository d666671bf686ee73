"""Operators for an ONNX Runtime of opset 23 compute what those of opset 24 are defined to."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.older_operators import use_older_operators
from hybridge.runtime.engines.onnxruntime.opset import lower_opset

OLD = Kernels(opset=23, recurrent_ops=False, experts=False, window_margin=1)
FLOAT, INT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64
CACHE, NEW = [3, 2, 9, 4], [3, 2, 4, 4]


def lowered(nodes: list[Any], inputs: dict[str, tuple[int, list[int]]], kind: int = FLOAT) -> ort.InferenceSession:
    """A session of ``nodes``, whose output y is of type ``kind``, under the old opset."""
    values = [helper.make_tensor_value_info(name, *of) for name, of in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", kind, None)])
    opsets = [helper.make_opsetid("", 24)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    lower_opset(model, OLD)
    assert model.graph.opset_imports[""] == 23
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])


def test_new_tokens_are_written_where_each_row_starts() -> None:
    random = np.random.default_rng(0)
    past, new = (random.standard_normal(shape, np.float32) for shape in (CACHE, NEW))
    start = np.array([0, 5, 2], np.int64)
    node = helper.make_node("TensorScatter", ["past", "new", "start"], ["y"], axis=2, mode="linear")
    session = lowered([node], {"past": (FLOAT, CACHE), "new": (FLOAT, NEW), "start": (INT64, [3])})
    (found,) = session.run(None, {"past": past, "new": new, "start": start})
    expected = past.copy()
    for row, first in enumerate(start):
        expected[row, :, first : first + 4] = new[row]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"axis": 2, "mode": "circular"}], ids=str)
def test_other_forms_of_scattering_are_refused(attributes: dict[str, Any]) -> None:
    node = helper.make_node("TensorScatter", ["past", "new", "start"], ["y"], **attributes)
    with pytest.raises(EngineError, match="TensorScatter"):
        lowered([node], {"past": (FLOAT, CACHE), "new": (FLOAT, NEW), "start": (INT64, [3])})


# Ties, both limits and numbers beyond them; the scale is a power of two, so that the division is exact.
SCALE = 0.25
NUMBERS = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5, 1e6, -1e6, 17.0, 19.0, 2**-10, 448, 465]
)


@pytest.mark.parametrize("kind", [INT8, TensorProto.FLOAT8E4M3FN])
def test_numbers_are_rounded_to_the_nearest_of_a_narrow_type(kind: int) -> None:
    if kind == INT8:
        expected = np.clip(np.rint(NUMBERS), -128, 127)
    else:
        expected = np.clip(NUMBERS, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["narrow"], output_dtype=kind),
        helper.make_node("DequantizeLinear", ["narrow", "scale"], ["y"]),
    ]
    session = lowered(nodes, {"x": (FLOAT, [len(NUMBERS)]), "scale": (FLOAT, [])})
    (found,) = session.run(None, {"x": (NUMBERS * SCALE).astype(np.float32), "scale": np.array(SCALE, np.float32)})
    np.testing.assert_array_equal(found, expected * SCALE)


@pytest.mark.parametrize(("sizes", "attributes"), [([3], {"axis": 0}), (None, {"axis": 0}), ([3], {})])
def test_a_scale_that_may_be_one_per_channel_stays(sizes: list[int] | None, attributes: dict[str, int]) -> None:
    """A plain division would be wrong for it."""
    node = helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], output_dtype=INT8, **attributes)
    inputs = [helper.make_tensor_value_info(name, FLOAT, of) for name, of in (("x", [3, 2]), ("scale", sizes))]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", INT8, [3, 2])])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]))
    use_older_operators(list(model.graph))
    assert [each.op_type for each in model.graph] == ["QuantizeLinear"]


def test_a_choice_between_narrow_integers_keeps_each_bit() -> None:
    random = np.random.default_rng(0)
    taken, other = random.random(256) < 0.5, np.arange(-128, 128, dtype=np.int8)
    wide = random.permutation(other).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["wide"], ["narrow"], to=INT8),
        helper.make_node("Concat", ["narrow"], ["new"], axis=0),
        helper.make_node("Where", ["c", "new", "old"], ["y"]),
    ]
    session = lowered(nodes, {"c": (TensorProto.BOOL, [256]), "wide": (FLOAT, [256]), "old": (INT8, [256])}, INT8)
    (found,) = session.run(None, {"c": taken, "wide": wide, "old": other})
    np.testing.assert_array_equal(found, np.where(taken, wide.astype(np.int8), other))
    assert found.dtype == np.int8
