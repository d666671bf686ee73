"""Operators that take a tensor of indices."""

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


def _gather(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS))))
    axis, size = draw_axis(draw, x.ndim), 0
    size = x.shape[axis]
    indices = draw_values(draw, draw_shape(draw, 0, 2), draw(st.sampled_from(INTEGERS)), -size, size - 1)
    return one_node(draw, "Gather", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], axis=axis)


def _gather_elements(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw), draw(st.sampled_from(FLOATS)))
    axis = draw_axis(draw, x.ndim)
    shape = list(x.shape)
    shape[axis] = draw(SIZES)
    indices = draw_values(draw, shape, np.int64, -x.shape[axis], x.shape[axis] - 1)
    return one_node(draw, "GatherElements", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], axis=axis)


def _tuples(draw: Draw, shape: list[int], leading: list[int], count: int) -> np.ndarray:
    rows = [draw_values(draw, leading, np.int64, -n, n - 1) for n in shape[:count]]
    return np.stack(rows, -1)


def _gather_nd(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw, 2), draw(st.sampled_from(FLOATS)))
    batch = draw(st.integers(0, 1))
    count = draw(st.integers(1, x.ndim - batch))
    leading = [*x.shape[:batch], *draw_shape(draw, 1, 2)]
    indices = _tuples(draw, list(x.shape[batch:]), leading, count)
    case = one_node(draw, "GatherND", ["x", "i"], {"x": x, "i": indices}, ONNX[x.dtype], batch_dims=batch)
    case.dynamic = False  # TensorRT requires a fixed last axis of the indices
    return case


def _scatter_nd(draw: Draw) -> Small:
    x = draw_values(draw, draw_shape(draw, 2), draw(st.sampled_from(FLOATS)))
    count = draw(st.integers(1, x.ndim))
    rows = int(np.prod(x.shape[:count]))
    chosen = draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=1, max_size=min(rows, 5)))
    indices = np.stack(np.unravel_index(np.array(chosen), x.shape[:count]), -1).astype(np.int64)
    updates = draw_values(draw, [len(chosen), *x.shape[count:]], x.dtype)
    case = one_node(draw, "ScatterND", ["x", "i", "u"], {"x": x, "i": indices, "u": updates}, ONNX[x.dtype])
    case.dynamic = False
    return case


def _tensor_scatter(draw: Draw) -> Small:
    batch, heads, size, positions = (draw(SIZES) for _ in range(4))
    new = draw(st.integers(1, positions))
    arrays = {
        "cache": draw_values(draw, [batch, heads, positions, size], np.float32),
        "update": draw_values(draw, [batch, heads, new, size], np.float32),
        "start": draw_values(draw, [batch], np.int64, 0, positions - new),
    }
    nodes = [helper.make_node("TensorScatter", ["cache", "update", "start"], ["y"], axis=2, mode="linear")]
    return Small(nodes, arrays, {"y": TensorProto.FLOAT})


CASES: dict[str, Case] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
