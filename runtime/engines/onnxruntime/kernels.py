"""Capabilities of the installed ONNX Runtime, found by trying."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
ARTIFACT_OPSET = 24


@dataclass(frozen=True)
class Kernels:
    """Abilities of one ONNX Runtime build on the CPU.

    opset: highest ONNX opset of ours that it loads.
    recurrent_ops: it has LinearAttention and CausalConvWithState (1.31 has, 1.23 has not).
    experts: its MoE computes interleaved SwiGLU (1.23 and later).
    window_margin: how many more tokens than local_window_size its GroupQueryAttention sees (1.31: 0, 1.23: 1).
    scaled_silu: it has ScaledSiLU, which is right on both tails (1.31 has, 1.23 has not).
    """

    opset: int
    recurrent_ops: bool
    experts: bool
    window_margin: int
    scaled_silu: bool = False


@lru_cache(maxsize=1)
def installed_kernels() -> Kernels:
    """The abilities of the installed ONNX Runtime."""
    opset = ARTIFACT_OPSET if _loads(helper.make_node("Identity", ["x"], ["y"]), (1,), ARTIFACT_OPSET) else 23
    conv = helper.make_node("CausalConvWithState", ["x", "x"], ["y", "z"], domain=MICROSOFT)
    scan = helper.make_node(
        "LinearAttention",
        ["x", "x", "x", "", "x"],
        ["y", "z"],
        domain=MICROSOFT,
        q_num_heads=1,
        kv_num_heads=1,
        update_rule="gated",
    )
    recurrent = all(_loads(node, (1, 1, 1), 21) for node in (conv, scan))
    silu = helper.make_node("ScaledSiLU", ["x"], ["y"], domain=MICROSOFT, alpha=1.0)
    return Kernels(opset, recurrent, _weighs_experts(), _window_margin(), _loads(silu, (1,), 21))


def quiet_options() -> ort.SessionOptions:
    """Options of a session that is run once or twice: it logs nothing below errors, and starts no threads."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def _window_margin() -> int:
    """Let the second of two tokens see a window of 1, and count what it saw from the mean of the values 0 and 1."""
    names = ("q", "k", "v", "past_key", "past_value", "last", "longest")
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "key", "value"],
        domain=MICROSOFT,
        num_heads=1,
        kv_num_heads=1,
        local_window_size=1,
    )
    tokens, cache = np.zeros((1, 2, 8), np.float32), np.zeros((1, 1, 2, 8), np.float32)
    last, longest = np.array([1], np.int32), np.array([2], np.int32)
    values = tokens.copy()
    values[0, 1] = 1.0
    feeds = dict(zip(names, (tokens, tokens, values, cache, cache, last, longest), strict=True))
    session = ort.InferenceSession(
        _model([node], {name: value.shape for name, value in feeds.items()}, {"y": tokens.shape}, 21),
        quiet_options(),
        providers=["CPUExecutionProvider"],
    )
    seen = session.run(["y"], feeds)[0]
    return 0 if seen[0, 1, 0] > 0.75 else 1


def _weighs_experts() -> bool:
    """Whether MoE, of two experts of one number each, computes SwiGLU of the one that has all the weight."""
    node = helper.make_node(
        "MoE",
        ["x", "scores", "up", "", "down"],
        ["y"],
        domain=MICROSOFT,
        k=1,
        activation_type="swiglu",
        swiglu_fusion=1,
        normalize_routing_weights=1,
        activation_alpha=1.0,
        activation_beta=0.0,
    )
    feeds = {
        "x": np.ones((1, 1), np.float32),
        "scores": np.array([[np.finfo(np.float32).min, 0.0]], np.float32),
        "up": np.array([[[9.0], [9.0]], [[2.0], [3.0]]], np.float32),
        "down": np.array([[[9.0]], [[0.5]]], np.float32),
    }
    model = _model([node], {name: value.shape for name, value in feeds.items()}, {"y": (1, 1)}, 21)
    try:
        session = ort.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])
        found = session.run(["y"], feeds)[0]
    except Exception:  # as in _loads
        return False
    return bool(abs(found[0, 0] - 0.5 * 3.0 * 2.0 / (1.0 + np.exp(-2.0))) < 1e-6)


def _loads(node: onnx.NodeProto, shape: tuple[int, ...], opset: int) -> bool:
    model = _model([node], {"x": shape}, {"y": shape}, opset)
    try:
        ort.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime raises its own classes for each reason; any of them means no
        return False
    return True


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    opset: int,
) -> bytes:
    """A serialised model of float32 values; inputs whose name begins with "l" are int32 lengths."""

    def values(shapes: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
        types = {name: TensorProto.INT32 if name.startswith("l") else TensorProto.FLOAT for name in shapes}
        return [helper.make_tensor_value_info(name, types[name], shape) for name, shape in shapes.items()]

    graph = helper.make_graph(nodes, "probe", values(inputs), values(outputs))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
