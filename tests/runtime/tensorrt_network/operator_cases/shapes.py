"""Operators that compute shapes or move elements."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.operator_cases.draw import (
    FLOATS,
    INTEGERS,
    ONNX,
    SIZES,
    Case,
    Draw,
    draw_axis,
    draw_shape,
    draw_values,
    one_node,
)
from tests.runtime.tensorrt_network.small_network import Small


def _shape_of(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), np.float32)
    ends = {"start": draw(st.integers(-x.ndim, x.ndim)), "end": draw(st.integers(-x.ndim, x.ndim))}
    start, end = (v + x.ndim if v < 0 else v for v in ends.values())
    if start >= end:
        ends = {}
    return one_node(draw, "Shape", ["x"], {"x": x}, TensorProto.INT64, **ends)


def _range(draw: Draw) -> Small:
    x = draw_values(draw, [draw(st.integers(1, 40))], np.float32)
    start, step = draw(st.integers(-5, 0)), draw(st.integers(1, 3))
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Squeeze", ["n"], ["stop"]),
        helper.make_node("Range", ["start", "stop", "step"], ["y"]),
    ]
    constants = {"start": np.array(start, np.int64), "step": np.array(step, np.int64)}
    return Small(nodes, {"x": x}, {"y": TensorProto.INT64}, constants, draw(st.booleans()))


def _expand(draw: Draw) -> Small:
    like = draw_values(draw, draw_shape(draw), np.float32)
    own = [1 if draw(st.booleans()) else n for n in like.shape][draw(st.integers(0, like.ndim)) :]
    dtype = draw(st.sampled_from((*FLOATS, *INTEGERS)))
    nodes = [helper.make_node("Shape", ["like"], ["sizes"]), helper.make_node("Expand", ["x", "sizes"], ["y"])]
    arrays = {"x": draw_values(draw, own, dtype), "like": like}
    return Small(nodes, arrays, {"y": ONNX[dtype]}, {}, draw(st.booleans()))


def _reshape(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
    order = draw(st.permutations(x.shape))
    sizes, split = [int(n) for n in order], draw(st.integers(0, x.ndim))
    if draw(st.booleans()):
        sizes = [int(np.prod(sizes[:split], dtype=np.int64)), *sizes[split:]]
    given = [
        0 if index < x.ndim and x.shape[index] == n and draw(st.booleans()) else n for index, n in enumerate(sizes)
    ]
    if draw(st.booleans()):
        given[draw(st.integers(0, len(given) - 1))] = -1
    constants = {"sizes": np.array(given, np.int64)}
    return one_node(draw, "Reshape", ["x", "sizes"], {"x": x}, ONNX[x.dtype], constants, allowzero=0)


def _reshape_to_empty(draw: Draw) -> Small:
    x = draw_values(draw, [0, draw(SIZES)], np.float32)
    constants = {"sizes": np.array([draw(SIZES), 0], np.int64)}
    return one_node(draw, "Reshape", ["x", "sizes"], {"x": x}, TensorProto.FLOAT, constants, allowzero=1)


def _transpose(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    return one_node(draw, "Transpose", ["x"], {"x": x}, ONNX[x.dtype], perm=draw(st.permutations(range(x.ndim))))


def _concat(draw: Draw) -> Small:
    shape, dtype = draw_shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS)))
    axis, count = draw_axis(draw, len(shape)), draw(st.integers(1, 4))
    arrays = {}
    for index in range(count):
        own = list(shape)
        own[axis] = draw(st.integers(0, 4))
        arrays[f"x{index}"] = draw_values(draw, own, dtype)
    return one_node(draw, "Concat", list(arrays), arrays, ONNX[dtype], axis=axis)


def _unsqueeze(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw, 0, 3), draw(st.sampled_from(FLOATS)))
    rank = x.ndim + draw(st.integers(1, 2))
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=rank - x.ndim, max_size=rank - x.ndim))
    axes = [axis - rank if draw(st.booleans()) else axis for axis in axes]
    return one_node(draw, "Unsqueeze", ["x", "axes"], {"x": x}, ONNX[x.dtype], {"axes": np.array(axes, np.int64)})


def _squeeze(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw(st.integers(0, x.ndim))
    x = np.expand_dims(x, axis)
    case = one_node(draw, "Squeeze", ["x", "axes"], {"x": x}, ONNX[x.dtype], {"axes": np.array([axis], np.int64)})
    case.dynamic = False
    return case


CASES: dict[str, Case] = {
    "Shape": _shape_of,
    "Range": _range,
    "Expand": _expand,
    "Reshape": _reshape,
    "Reshape to no elements": _reshape_to_empty,
    "Transpose": _transpose,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
}
