"""Capabilities of the installed ONNX Runtime, found by running small models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
ARTIFACT_OPSET = 24
# Attributes of MoE and QMoE in the probes below: the best expert, and SwiGLU without the constants of some models.
_SWIGLU: dict[str, Any] = {
    "k": 1,
    "activation_type": "swiglu",
    "swiglu_fusion": 1,
    "normalize_routing_weights": 1,
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
}


@dataclass(frozen=True)
class Kernels:
    """Abilities of one ONNX Runtime build on the CPU.

    opset: highest ONNX opset of ours that it loads.
    recurrent_ops: it has LinearAttention and CausalConvWithState (1.31 has, 1.23 has not).
    experts: its MoE computes interleaved SwiGLU (1.23 and later).
    window_margin: how many more tokens than local_window_size its GroupQueryAttention sees (1.31: 0, 1.23: 1).
    scaled_silu: it has ScaledSiLU, which is right on both tails (1.31 has, 1.23 has not).
    own_operators: use the operators of cpu_library.py too, if that library can be compiled.
    attention_sinks: its GroupQueryAttention adds a score for each head to what the softmax sums (1.31 does).
    packs_blocks: its MatMulNBits copies 4-bit and 8-bit matrices into its own layout when a session is created.
    quantized_experts: it has QMoE with block-quantised expert weights and 8-bit products (1.31 has).
    """

    opset: int
    recurrent_ops: bool
    experts: bool
    window_margin: int
    scaled_silu: bool = False
    packs_blocks: bool = False
    quantized_experts: bool = False
    attention_sinks: bool = False
    own_operators: bool = False


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
    packs = all(_packs_blocks(bits) for bits in (4, 8))
    experts, few_bits = _weighs_experts(), all(_weighs_quantized_experts(bits) for bits in (4, 8))
    sinks, scaled_silu = _adds_sinks(), _loads(silu, (1,), 21)
    return Kernels(opset, recurrent, experts, _window_margin(), scaled_silu, packs, few_bits, sinks, own_operators=True)


def quiet_options() -> ort.SessionOptions:
    """Options of a session that is run once or twice: it logs nothing below errors, and starts no threads."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def _window_margin() -> int:
    """Let the second of two tokens see a window of 1, and count what it saw from the mean of the values 0 and 1."""
    return 0 if _attended({}, local_window_size=1) > 0.75 else 1


def _adds_sinks() -> bool:
    """Whether a sink as strong as the two keys leaves a third to the value of 1."""
    try:
        return bool(abs(_attended({"sinks": np.zeros(1, np.float32)}) - 1 / 3) < 1e-6)
    except Exception:  # as in _loads
        return False


def _attended(sinks: dict[str, np.ndarray], **attributes: Any) -> float:
    """What GroupQueryAttention gives the second of two tokens, whose keys are alike and whose values are 0 and 1."""
    names = ("q", "k", "v", "past_key", "past_value", "last", "longest")
    node = helper.make_node(
        "GroupQueryAttention",
        [*names, *(["", "", "", "", *sinks] if sinks else [])],
        ["y", "key", "value"],
        domain=MICROSOFT,
        num_heads=1,
        kv_num_heads=1,
        **attributes,
    )
    tokens, cache = np.zeros((1, 2, 8), np.float32), np.zeros((1, 1, 2, 8), np.float32)
    last, longest = np.array([1], np.int32), np.array([2], np.int32)
    values = tokens.copy()
    values[0, 1] = 1.0
    feeds = dict(zip(names, (tokens, tokens, values, cache, cache, last, longest), strict=True)) | sinks
    session = ort.InferenceSession(
        _model([node], {name: value.shape for name, value in feeds.items()}, {"y": tokens.shape}, 21),
        quiet_options(),
        providers=["CPUExecutionProvider"],
    )
    return float(session.run(["y"], feeds)[0][0, 1, 0])


def _weighs_experts() -> bool:
    """Whether MoE, of two experts of one number each, computes SwiGLU of the one that has all the weight."""
    node = helper.make_node(
        "MoE",
        ["x", "scores", "up", "", "down"],
        ["y"],
        domain=MICROSOFT,
        **_SWIGLU,
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


def _weighs_quantized_experts(bits: int) -> bool:
    """Whether QMoE on two experts with constant weights computes SwiGLU of the expert with all the routing weight."""
    node = helper.make_node(
        "QMoE",
        ["x", "scores", "up", "up_scale", "", "down", "down_scale", ""],
        ["y"],
        domain=MICROSOFT,
        **_SWIGLU,
        expert_weight_bits=bits,
        block_size=16,
        accuracy_level=4,
    )
    # The zero point is the middle of the range: one below it is -1, one above it is 1.
    numbers = np.array(
        [[[0x77], [0x77]], [[0x99], [0x99]]] if bits == 4 else [[[127], [127]], [[129], [129]]], np.uint8
    )
    feeds: dict[str, np.ndarray] = {
        "x": np.ones((1, 16), np.float32),
        "scores": np.array([[np.finfo(np.float32).min, 0.0]], np.float32),
        "up": np.tile(numbers, (1, 16, 2 * bits)),
        "up_scale": np.full((2, 32, 1), 0.25, np.float32),
        "down": np.tile(numbers, (1, 8, 2 * bits)),
        "down_scale": np.full((2, 16, 1), 0.5, np.float32),
    }
    try:
        model = onnx.load_from_string(_model([node], {n: feeds[n].shape for n in ("x", "scores")}, {"y": (1, 16)}, 21))
        weights = {name: array for name, array in feeds.items() if name not in ("x", "scores")}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
        session = ort.InferenceSession(model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"])
        found = session.run(["y"], {"x": feeds["x"], "scores": feeds["scores"]})[0]
    except Exception:  # as in _loads
        return False
    # Gate and up are both 16 * 0.25 = 4.
    return bool(np.allclose(found, 16 * 0.5 * 4.0 * 4.0 / (1.0 + np.exp(-4.0)), rtol=0.02))


def _packs_blocks(bits: int) -> bool:
    """Whether a session of MatMulNBits no longer reads the memory of the matrix that it was created with."""
    blocks, scales = np.full((32, 1, 4 * bits), 0xFF, np.uint8), np.ones(32, np.float32)
    shapes = {"matrix": blocks.shape, "scales": scales.shape}
    node = helper.make_node(
        "MatMulNBits",
        ["x", *shapes],
        ["y"],
        domain=MICROSOFT,
        K=32,
        N=32,
        bits=bits,
        block_size=32,
        accuracy_level=4,
    )
    model = onnx.load_from_string(_model([node], {"x": (1, 32)}, {"y": (1, 32)}, 21))
    for name, array in (("matrix", blocks), ("scales", scales)):
        tensor = onnx.numpy_helper.from_array(array, name)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="memory")
        model.graph.initializer.append(tensor)
    options, feeds = quiet_options(), {"x": np.ones((1, 32), np.float32)}
    options.add_external_initializers(
        ["matrix", "scales"], [ort.OrtValue.ortvalue_from_numpy(array) for array in (blocks, scales)]
    )
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        before = session.run(["y"], feeds)[0]
        blocks[...] = 0
        return bool(before.any() and np.array_equal(before, session.run(["y"], feeds)[0]))
    except Exception:  # as in _loads
        return False


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
