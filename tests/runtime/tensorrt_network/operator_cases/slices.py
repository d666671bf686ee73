"""Operators that take ranges of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.operator_cases.draw import (
    FLOATS,
    INTEGERS,
    ONNX,
    Case,
    Draw,
    draw_axis,
    draw_shape,
    draw_values,
    one_node,
)
from tests.runtime.tensorrt_network.small_network import Small


def _split(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw_axis(draw, x.ndim)
    first = draw(st.integers(0, x.shape[axis]))
    nodes = [helper.make_node("Split", ["x", "sizes"], ["y", "z"], axis=axis)]
    constants = {"sizes": np.array([first, x.shape[axis] - first], np.int64)}
    return Small(nodes, {"x": x}, {"y": ONNX[x.dtype], "z": ONNX[x.dtype]}, constants, draw(st.booleans()))


def _split_evenly(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), np.float32)
    axis = draw_axis(draw, x.ndim)
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], axis=axis, num_outputs=2)]
    x = np.concatenate([x, x], axis)
    return Small(nodes, {"x": x}, {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}, {}, draw(st.booleans()))


def _slice(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1))
    step = draw(st.sampled_from((1, 1, 2, -1)))
    bounds = st.integers(-6, 6)
    constants = {
        "starts": np.array([draw(bounds) for _ in axes], np.int64),
        "ends": np.array([draw(bounds) for _ in axes], np.int64),
        "axes": np.array(axes, np.int64),
        "steps": np.array([step] * len(axes), np.int64),
    }
    return one_node(draw, "Slice", ["x", *constants], {"x": x}, ONNX[x.dtype], constants)


def _slice_by_shape(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), np.float32)
    axis, like = draw(st.integers(0, x.ndim - 1)), draw_values(draw, [draw(st.integers(1, 6))], np.float32)
    nodes = [
        helper.make_node("Shape", ["like"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"]),
    ]
    constants = {
        "start": np.array([draw(st.integers(-3, 2))], np.int64),
        "axis": np.array([axis], np.int64),
        "step": np.array([1], np.int64),
    }
    return Small(nodes, {"x": x, "like": like}, {"y": TensorProto.FLOAT}, constants, draw(st.booleans()))


def _pad(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw(st.integers(0, x.ndim - 1))
    constants = {
        "pads": np.array([draw(st.integers(0, 3)), draw(st.integers(0, 3))], np.int64),
        "value": np.array(draw(st.sampled_from((0.0, -1.5))), x.dtype),
        "axis": np.array([axis], np.int64),
    }
    return one_node(draw, "Pad", ["x", "pads", "value", "axis"], {"x": x}, ONNX[x.dtype], constants)


CASES: dict[str, Case] = {
    "Split": _split,
    "Split evenly": _split_evenly,
    "Slice": _slice,
    "Slice by a shape": _slice_by_shape,
    "Pad": _pad,
}
