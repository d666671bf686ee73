"""Operators that run a subgraph."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.runtime.tensorrt_network.operator_cases.draw import SIZES, Case, Draw, draw_values
from tests.runtime.tensorrt_network.small_network import Small


def _scan(draw: Draw) -> Small:
    rows, size = draw(st.integers(1, 5)), draw(SIZES)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "decay"], ["carried"]),
            helper.make_node("Add", ["carried", "row"], ["next"]),
            helper.make_node("Mul", ["state", "row"], ["shown"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in ("state", "row", "decay")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in ("next", "shown")],
    )
    node = helper.make_node("Scan", ["first", "rows", "decays"], ["last", "y"], body=body, num_scan_inputs=2)
    arrays = {"first": draw_values(draw, [size], np.float32)}
    arrays |= {name: draw_values(draw, [rows, size], np.float32, -1, 1) for name in ("rows", "decays")}
    return Small([node], arrays, {"last": TensorProto.FLOAT, "y": TensorProto.FLOAT})


CASES: dict[str, Case] = {"Scan": _scan}
