"""Random shapes, values and models of one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.small_network import Small

Draw = Callable[[st.SearchStrategy[Any]], Any]
Case = Callable[[Draw], Small]
FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
ONNX = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.bool_): TensorProto.BOOL,
}
SIZES = st.integers(1, 5)


def draw_shape(draw: Draw, least: int = 1, most: int = 4) -> list[int]:
    return draw(st.lists(SIZES, min_size=least, max_size=most))


def draw_values(draw: Draw, shape: Any, dtype: Any, low: float = -4, high: float = 4) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if np.dtype(dtype) == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if np.dtype(dtype).kind == "i":
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def one_node(
    draw: Draw,
    op: str,
    inputs: list[str],
    arrays: dict[str, np.ndarray],
    out: int,
    constants: Any = None,
    **attributes: Any,
) -> Small:
    node = helper.make_node(op, inputs, ["y"], **attributes)
    return Small([node], arrays, {"y": out}, constants or {}, draw(st.booleans()))


def draw_axis(draw: Draw, rank: int) -> int:
    return int(draw(st.integers(-rank, rank - 1)))
