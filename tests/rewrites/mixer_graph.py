"""A graph of one Mamba2 mixer between its projections, as the exporter writes it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions import attach_functions

HEADS, HEAD_DIM, GROUPS, STATE_SIZE, KERNEL = 6, 8, 2, 16, 4
INNER, WIDTH = HEADS * HEAD_DIM, GROUPS * STATE_SIZE
CONV_DIM = INNER + 2 * WIDTH
OUTPUTS = ("gated", "present_conv_state", "present_state")
LIMITS = {"time_step_min": 0.01, "time_step_max": 2.0, "chunk_size": 16}


def mixer_model(dtype: DType = DType.FLOAT32) -> onnx.ModelProto:
    """projected [batch, seq, gate | conv_input | dt] and both states in, OUTPUTS out; gated is float32 [.., INNER]."""
    graph = helper.make_graph(_nodes(dtype), "mixer", _inputs(dtype), _outputs(dtype), _weights(dtype))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    flat = {"gate": INNER, "conv_input": CONV_DIM, "dt": HEADS, "y_flat": INNER, "mixed": CONV_DIM}
    flat |= {"x_flat": INNER, "B_flat": WIDTH, "C_flat": WIDTH}
    split = {"x": (HEADS, HEAD_DIM), "B": (GROUPS, STATE_SIZE), "C": (GROUPS, STATE_SIZE), "y": (HEADS, HEAD_DIM)}
    shapes: dict[str, tuple[int, ...]] = {**{name: (size,) for name, size in flat.items()}, **split}
    model.graph.value_info.extend(_info(name, dtype, ("batch", "seq", *sizes)) for name, sizes in shapes.items())
    attach_functions(model)
    return model


def mixer_feeds(seed: int, lengths: tuple[int, ...], time: int) -> dict[str, np.ndarray]:
    """Random inputs in float32; tokens past the lengths are large, and must reach nothing."""
    random = np.random.default_rng(seed)
    rows = len(lengths)
    projected = random.standard_normal((rows, time, INNER + CONV_DIM + HEADS)).astype(np.float32)
    for row, length in enumerate(lengths):
        projected[row, length:] = 1e3
    states = {"conv_state": (CONV_DIM, KERNEL), "state": (HEADS, HEAD_DIM, STATE_SIZE)}
    feeds = {name: random.standard_normal((rows, *size)).astype(np.float32) for name, size in states.items()}
    return {"projected": projected, "context_lengths": np.array(lengths, np.int32), **feeds}


def _nodes(dtype: DType) -> list[onnx.NodeProto]:
    narrow = dtype is not DType.FLOAT32
    scan_inputs = ["x", "A", "B", "C", "D", "dt", "dt_bias", "state", "context_lengths"]
    conv_inputs = ["conv_input", "weight", "bias", "conv_state", "context_lengths"]
    gate, y = ("gate_wide", "y_wide") if narrow else ("gate", "y_flat")
    nodes = [
        helper.make_node("Split", ["projected", "sizes"], ["gate", "conv_input", "dt"], axis=-1, name="split"),
        _operator("causal_conv1d", conv_inputs, ["mixed", OUTPUTS[1]], activation="silu"),
        helper.make_node("Split", ["mixed", "channels"], ["x_flat", "B_flat", "C_flat"], axis=2, name="channels"),
        *(
            helper.make_node("Reshape", [f"{name}_flat", shape], [name], name=f"view_{name}")
            for name, shape in (("x", "x_shape"), ("B", "group_shape"), ("C", "group_shape"))
        ),
        _operator("update_ssm_state", scan_inputs, ["y", OUTPUTS[2]], **LIMITS),
        helper.make_node("Reshape", ["y", "y_shape"], ["y_flat"], name="flat"),
        helper.make_node("Sigmoid", [gate], ["sigmoid"], name="sigmoid"),
        helper.make_node("Mul", [gate, "sigmoid"], ["silu"], name="silu"),
        helper.make_node("Mul", [y, "silu"], [OUTPUTS[0]], name="gating"),
    ]
    if narrow:
        casts = (("y_flat", "y_wide"), ("gate", "gate_wide"))
        nodes[8:8] = [helper.make_node("Cast", [a], [b], to=TensorProto.FLOAT, name=f"cast_{a}") for a, b in casts]
    return nodes


def _operator(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"node_{op}", domain="trt_edgellm", **attributes)


def _inputs(dtype: DType) -> list[onnx.ValueInfoProto]:
    return [
        _info("projected", dtype, ("batch", "seq", INNER + CONV_DIM + HEADS)),
        _info("context_lengths", DType.INT32, ("batch",)),
        _info("conv_state", dtype, ("batch", CONV_DIM, KERNEL)),
        _info("state", DType.FLOAT32, ("batch", HEADS, HEAD_DIM, STATE_SIZE)),
    ]


def _outputs(dtype: DType) -> list[onnx.ValueInfoProto]:
    return [
        _info(OUTPUTS[0], DType.FLOAT32, ("batch", "seq", INNER)),
        _info(OUTPUTS[1], dtype, ("batch", CONV_DIM, KERNEL)),
        _info(OUTPUTS[2], DType.FLOAT32, ("batch", HEADS, HEAD_DIM, STATE_SIZE)),
    ]


def _weights(dtype: DType) -> list[onnx.TensorProto]:
    random = np.random.default_rng(0)
    shapes = {
        "sizes": [INNER, CONV_DIM, HEADS],
        "channels": [INNER, WIDTH, WIDTH],
        "x_shape": [0, 0, HEADS, HEAD_DIM],
        "group_shape": [0, 0, GROUPS, STATE_SIZE],
        "y_shape": [0, 0, INNER],
    }
    data = {"weight": (CONV_DIM, 1, KERNEL), "bias": (CONV_DIM,)}
    scalars = {"A": -np.linspace(1, 8, HEADS), "D": np.ones(HEADS), "dt_bias": np.linspace(-2, 1, HEADS)}
    arrays = {name: np.array(value, np.int64) for name, value in shapes.items()}
    arrays |= {name: random.standard_normal(size).astype(dtype.numpy) for name, size in data.items()}
    arrays |= {name: value.astype(np.float32) for name, value in scalars.items()}
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _info(name: str, dtype: DType, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype.onnx, shape)
