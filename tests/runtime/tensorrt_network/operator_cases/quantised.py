"""Operators on numbers of 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.operator_cases.draw import (
    FLOATS,
    ONNX,
    SIZES,
    Case,
    Draw,
    draw_shape,
    draw_values,
)
from tests.runtime.tensorrt_network.small_network import Small


def _dequantize(draw: Draw) -> Small:
    """Constant weights with scales of blocks, of an axis or of the whole tensor."""
    blocks, block, columns = draw(SIZES), draw(st.integers(2, 4)), 2 * draw(SIZES)
    kind, dtype = draw(st.sampled_from((TensorProto.INT8, TensorProto.INT4))), draw(st.sampled_from(FLOATS))
    limits = (-128, 127) if kind == TensorProto.INT8 else (-8, 7)
    numbers = draw_values(draw, [blocks * block, columns], np.int64, *limits)
    weights = helper.make_tensor("w", kind, numbers.shape, numbers.reshape(-1).tolist())
    how = draw(st.sampled_from(("blocks",) if kind == TensorProto.INT4 else ("blocks", "axis", "tensor")))
    shape: list[int] = {"blocks": [blocks, columns], "axis": [columns], "tensor": []}[how]
    attributes: Mapping[str, int] = {"blocks": {"axis": 0, "block_size": block}, "axis": {"axis": 1}, "tensor": {}}[how]
    constants = {"w": weights, "scale": draw_values(draw, shape, dtype, 0.1, 2)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], **attributes),
        helper.make_node("Add", ["wide", "x"], ["y"]),
    ]
    return Small(nodes, {"x": draw_values(draw, [columns], dtype)}, {"y": ONNX[dtype]}, constants)


def _quantize(kind: int, limit: float) -> Case:
    """Activations, also beyond the type's range and halfway between two numbers, rounded and widened again."""

    def case(draw: Draw) -> Small:
        # Halves of the scale are ties.
        scale = np.array(draw(st.sampled_from((0.25, 0.5, 1.0, 0.3))), np.float32)
        steps = draw_values(draw, draw_shape(draw, 2), np.int64, -3 * limit, 3 * limit)
        x = (steps / 2 * scale).astype(np.float32)
        zero = helper.make_tensor("zero", kind, [], [0])
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["few"]),
            helper.make_node("DequantizeLinear", ["few", "scale", "zero"], ["y"]),
        ]
        constants = {"scale": scale, "zero": zero}
        return Small(nodes, {"x": x}, {"y": TensorProto.FLOAT}, constants, draw(st.booleans()))

    return case


CASES: dict[str, Case] = {
    "DequantizeLinear": _dequantize,
    "QuantizeLinear to int8": _quantize(TensorProto.INT8, 127),
    "QuantizeLinear to e4m3": _quantize(TensorProto.FLOAT8E4M3FN, 448),
}
