"""Recurrent states of 8 bits in standard operators, for function bodies and engines' graphs alike.

The eager form is reference/quantized_state.py.
"""

from __future__ import annotations

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_dtypes import LARGEST
from hybridge.trt_plugins.e4m3 import Nodes, V, floats, rounded_bytes


def exact_state(nodes: Nodes[V], values: V, scales: V, dtype: DType, axis: int) -> V:
    """``values`` of type ``dtype`` times ``scales``, which have no ``axis`` (from the end), as float32."""
    wide = nodes.op("Cast", values, to=DType.FLOAT32.onnx) if dtype is DType.INT8 else floats(nodes, values)
    return nodes.op("Mul", wide, nodes.op("Unsqueeze", scales, nodes.array(np.array([axis], np.int64))))


def rounded_state(nodes: Nodes[V], state: V, dtype: DType, axis: int) -> tuple[V, V]:
    """float32 ``state`` as ``dtype``, and the float32 scales of its rows along ``axis`` (from the end)."""

    def number(value: float) -> V:
        return nodes.array(np.array(value, np.float32))

    axes = nodes.array(np.array([axis], np.int64))
    largest = nodes.op("ReduceMax", nodes.op("Abs", state), axes, keepdims=1)
    # A maximum may pass over what is not a number; zero times it, or times infinity, is none.
    zero = nodes.op("ReduceSum", nodes.op("Mul", state, number(0.0)), axes, keepdims=1)
    scale = nodes.op("Div", largest, number(LARGEST[dtype]))
    scale = nodes.op("Where", nodes.op("IsNaN", zero), number(np.nan), scale)
    unit = nodes.op("Where", nodes.op("Greater", scale, number(0.0)), scale, number(1.0))
    units = nodes.op("Div", state, unit)
    if dtype is DType.INT8:
        limits = number(-LARGEST[dtype]), number(LARGEST[dtype])
        values = nodes.op("Cast", nodes.op("Clip", nodes.op("Round", units), *limits), to=DType.INT8.onnx)
    else:
        values = rounded_bytes(nodes, units)
    return values, nodes.op("Squeeze", scale, axes)
