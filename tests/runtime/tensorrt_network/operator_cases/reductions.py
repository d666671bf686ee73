"""Operators over whole axes."""

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


def _softmax(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw, 2), draw(st.sampled_from(FLOATS)))
    return one_node(draw, "Softmax", ["x"], {"x": x}, ONNX[x.dtype], axis=draw_axis(draw, x.ndim))


def _topk(draw: Draw) -> Small:
    shape = draw_shape(draw)
    axis = draw_axis(draw, len(shape))
    # No two equal numbers: their order is not defined.
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(int(np.prod(shape)))
    x = order.reshape(shape).astype(draw(st.sampled_from(FLOATS)))
    count = draw(st.integers(1, shape[axis]))
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=draw(st.integers(0, 1)), sorted=1)]
    outputs = {"y": ONNX[x.dtype], "i": TensorProto.INT64}
    return Small(nodes, {"x": x}, outputs, {"k": np.array([count], np.int64)}, draw(st.booleans()))


def _arg_max(draw: Draw) -> Small:
    shape = draw_shape(draw, 2)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(int(np.prod(shape)))
    keep, axis = draw(st.integers(0, 1)), draw_axis(draw, len(shape))
    x = order.reshape(shape).astype(np.float32)
    return one_node(draw, "ArgMax", ["x"], {"x": x}, TensorProto.INT64, axis=axis, keepdims=keep)


def _cumsum(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), np.float32)
    ends = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    axis = {"axis": np.array(draw_axis(draw, x.ndim), np.int64)}
    return one_node(draw, "CumSum", ["x", "axis"], {"x": x}, TensorProto.FLOAT, axis, **ends)


def _reduce(op: str) -> Case:
    def case(draw: Draw) -> Small:
        x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
        axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1))
        keep = draw(st.integers(0, 1))
        constants = {"axes": np.array(axes, np.int64)}
        return one_node(draw, op, ["x", "axes"], {"x": x}, ONNX[x.dtype], constants, keepdims=keep)

    return case


def _reduce_all(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(INTEGERS)))
    return one_node(draw, "ReduceMax", ["x"], {"x": x}, ONNX[x.dtype], keepdims=draw(st.integers(0, 1)))


def _rms_norm(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw, 2), draw(st.sampled_from(FLOATS)))
    scale = {"scale": draw_values(draw, [x.shape[-1]], x.dtype)}
    return one_node(draw, "RMSNormalization", ["x", "scale"], {"x": x}, ONNX[x.dtype], scale, axis=-1, epsilon=1e-5)


CASES: dict[str, Case] = {
    "Softmax": _softmax,
    "TopK": _topk,
    "ArgMax": _arg_max,
    "CumSum": _cumsum,
    **{op: _reduce(op) for op in ("ReduceSum", "ReduceSumSquare", "ReduceMax")},
    "ReduceMax of all": _reduce_all,
    "RMSNormalization": _rms_norm,
}
