"""Operators on numbers of 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.operator_cases.draw import SIZES, Case, Draw, draw_values
from tests.runtime.tensorrt_network.small_network import Small


def _dequantize(draw: Draw) -> Small:
    blocks, block, columns = draw(SIZES), draw(st.integers(2, 4)), 2 * draw(SIZES)
    kind = draw(st.sampled_from((TensorProto.INT8, TensorProto.INT4)))
    limits = (-128, 127) if kind == TensorProto.INT8 else (-8, 7)
    numbers = draw_values(draw, [blocks * block, columns], np.int64, *limits)
    weights = helper.make_tensor("w", kind, numbers.shape, numbers.reshape(-1).tolist())
    how = draw(st.sampled_from(("blocks", "axis") if kind == TensorProto.INT4 else ("blocks", "axis", "tensor")))
    shape: list[int] = {"blocks": [blocks, columns], "axis": [columns], "tensor": []}[how]
    attributes: Mapping[str, int] = {"blocks": {"axis": 0, "block_size": block}, "axis": {"axis": 1}, "tensor": {}}[how]
    if how == "axis" and kind == TensorProto.INT4:
        shape, attributes = [blocks, columns], {"axis": 0, "block_size": block}
    constants = {"w": weights, "scale": draw_values(draw, shape, np.float32, 0.1, 2)}
    x = draw_values(draw, [columns], np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], **attributes),
        helper.make_node("Add", ["wide", "x"], ["y"]),
    ]
    return Small(nodes, {"x": x}, {"y": TensorProto.FLOAT}, constants)


CASES: dict[str, Case] = {"DequantizeLinear": _dequantize}
