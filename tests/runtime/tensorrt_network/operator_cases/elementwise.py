"""Operators that compute each element on its own."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from tests.runtime.tensorrt_network.operator_cases.draw import (
    FLOATS,
    INTEGERS,
    ONNX,
    Case,
    Draw,
    draw_shape,
    draw_values,
    one_node,
)
from tests.runtime.tensorrt_network.small_network import Small


def _unary(op: str, low: float = -4, high: float = 4) -> Case:
    def case(draw: Draw) -> Small:
        dtype = draw(st.sampled_from(FLOATS))
        return one_node(draw, op, ["x"], {"x": draw_values(draw, draw_shape(draw, 0), dtype, low, high)}, ONNX[dtype])

    return case


def _binary(op: str, types: tuple[np.dtype, ...], compares: bool = False, low: float = -4) -> Case:
    def case(draw: Draw) -> Small:
        dtype, shape = draw(st.sampled_from(types)), draw_shape(draw)
        arrays = {}
        for name in ("a", "b"):
            own = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape]
            arrays[name] = draw_values(draw, own[draw(st.integers(0, len(own))) :], dtype, low)
        out = TensorProto.BOOL if compares or dtype == np.bool_ else ONNX[dtype]
        return one_node(draw, op, ["a", "b"], arrays, out)

    return case


def _round(draw: Draw) -> Small:
    """Halves too, which are rounded to even numbers."""
    dtype = draw(st.sampled_from(FLOATS))
    values = np.round(2 * draw_values(draw, draw_shape(draw, 0), dtype, -8, 8)) / 2
    return one_node(draw, "Round", ["x"], {"x": np.asarray(values, dtype)}, ONNX[dtype])


def _is_nan(draw: Draw) -> Small:
    values = draw_values(draw, draw_shape(draw), np.float32)
    values[values > 1] = np.nan
    values[values < -1] = -np.inf
    return one_node(draw, "IsNaN", ["x"], {"x": values}, TensorProto.BOOL)


def _power_of_two(draw: Draw) -> Small:
    """The only base in exported graphs; exponents of any sign."""
    exponents = draw_values(draw, draw_shape(draw), np.float32, -20, 20)
    arrays = {"a": np.array([2], np.float32), "b": exponents}
    return one_node(draw, "Pow", ["a", "b"], arrays, TensorProto.FLOAT)


def _cast(draw: Draw) -> Small:
    source, target = draw(st.sampled_from(list(ONNX))), draw(st.sampled_from(list(ONNX)))
    return one_node(
        draw, "Cast", ["x"], {"x": draw_values(draw, draw_shape(draw), source)}, ONNX[target], to=ONNX[target]
    )


def _cast_like(draw: Draw) -> Small:
    source, target = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(FLOATS))
    arrays = {"x": draw_values(draw, draw_shape(draw), source), "like": draw_values(draw, (1,), target)}
    return one_node(draw, "CastLike", ["x", "like"], arrays, ONNX[target])


def _clip(draw: Draw) -> Small:
    arrays = {"x": draw_values(draw, draw_shape(draw), np.float32, -9, 9)}
    ends = {"low": np.array(-6, np.float32), "high": np.array(draw(st.integers(-6, 6)), np.float32)}
    return one_node(draw, "Clip", ["x", "low", "high"], arrays, TensorProto.FLOAT, ends)


def _gelu(draw: Draw) -> Small:
    values = draw_values(draw, draw_shape(draw, 0), np.float32, -6, 6)
    form = draw(st.sampled_from(("none", "tanh")))
    return one_node(draw, "Gelu", ["x"], {"x": values}, TensorProto.FLOAT, approximate=form)


def _where(draw: Draw) -> Small:
    shape, dtype = draw_shape(draw), draw(st.sampled_from((*FLOATS, *INTEGERS)))
    arrays = {}
    for name, own_type in (("c", np.bool_), ("a", dtype), ("b", dtype)):
        own = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape]
        arrays[name] = draw_values(draw, own[draw(st.integers(0, len(own))) :], own_type)
    return one_node(draw, "Where", ["c", "a", "b"], arrays, ONNX[dtype])


BOOLEANS = (np.dtype(np.bool_),)
CASES: dict[str, Case] = {
    **{op: _unary(op) for op in ("Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Relu", "Softplus", "Identity")},
    **{op: _unary(op) for op in ("Abs", "Ceil", "Floor")},
    **{op: _unary(op, 0.1) for op in ("Sqrt", "Reciprocal", "Log")},
    **{op: _binary(op, (*FLOATS, *INTEGERS)) for op in ("Add", "Sub", "Mul", "Max", "Min")},
    "Div": _binary("Div", (*FLOATS, *INTEGERS), low=1),
    "Mod": _binary("Mod", INTEGERS, low=1),
    **{op: _binary(op, BOOLEANS) for op in ("And", "Or")},
    **{
        op: _binary(op, (*INTEGERS, FLOATS[0]), True)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Gelu": _gelu,
    "IsNaN": _is_nan,
    "Pow": _power_of_two,
    "Round": _round,
    "Where": _where,
}
