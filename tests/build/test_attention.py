"""Attention of odd head sizes, padded for TensorRT, computes what it computed before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hybridge.trt_plugins.build.attention import DECOMPOSABLE_ATTRIBUTE, support_attention

HEADS, KV_HEADS, SEQ, CACHE = 4, 2, 3, 7


def attention_model(head_size: int, kind: int, scale: float | None) -> onnx.ModelProto:
    shapes = {"q": (HEADS, SEQ), "k": (KV_HEADS, CACHE), "v": (KV_HEADS, CACHE)}
    inputs = [helper.make_tensor_value_info(name, kind, ["batch", *shape, head_size]) for name, shape in shapes.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", 1, SEQ, CACHE]))
    attributes = {} if scale is None else {"scale": scale}
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], name="attention", **attributes)
    output = helper.make_tensor_value_info("y", kind, ["batch", HEADS, SEQ, head_size])
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    for node in model.graph.node:
        # ONNX Runtime refuses the attribute that is meant for TensorRT's parser.
        kept = [attribute for attribute in node.attribute if attribute.name != DECOMPOSABLE_ATTRIBUTE]
        del node.attribute[:]
        node.attribute.extend(kept)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]


def oracle(feeds: dict[str, np.ndarray], scale: float) -> np.ndarray:
    """Grouped-query attention in float64."""
    q, k, v = (feeds[name].astype(np.float64) for name in ("q", "k", "v"))
    k, v = (np.repeat(tensor, HEADS // KV_HEADS, axis=1) for tensor in (k, v))
    scores = np.where(feeds["mask"], q @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("head_size", [10, 14, 16])
def test_result_is_unchanged(head_size: int, scale: float | None) -> None:
    random = np.random.default_rng(head_size)
    feeds: dict[str, np.ndarray] = {
        name: random.standard_normal((2, heads, length, head_size)).astype(np.float16)
        for name, heads, length in (("q", HEADS, SEQ), ("k", KV_HEADS, CACHE), ("v", KV_HEADS, CACHE))
    }
    feeds["mask"] = np.tril(np.ones((SEQ, CACHE), bool), CACHE - SEQ)[None, None].repeat(2, axis=0)
    model = attention_model(head_size, TensorProto.FLOAT16, scale)
    support_attention(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    expected = oracle(feeds, 1.0 / np.sqrt(head_size) if scale is None else scale)
    # Two fp16 products: 2**-11 relative each, sums of up to 16 terms.
    np.testing.assert_allclose(run(model, feeds), expected, atol=4e-3)


def with_loop_behind(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` whose result an idle loop reads, which leaves it as it is."""
    output = model.graph.output[0]
    kind = output.type.tensor_type.elem_type
    names = ("sum", "row", "next", "same")
    info = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT if name in names[::2] else kind, None)
        for name in names
    }
    keep = [helper.make_node("Identity", ["sum"], ["next"]), helper.make_node("Identity", ["row"], ["same"])]
    body = helper.make_graph(keep, "body", [info["sum"], info["row"]], [info["next"], info["same"]])
    start = helper.make_node("Constant", [], ["start"], value_float=0.0)
    scan = helper.make_node("Scan", ["start", "y"], ["last", "z"], body=body, num_scan_inputs=1)
    model.graph.node.extend([start, scan])
    output.name = "z"
    return model


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize(
    ("head_size", "kind", "numpy"), [(10, TensorProto.FLOAT16, np.float16), (12, TensorProto.FLOAT, np.float32)]
)
def test_attention_before_a_loop_is_written_out(head_size: int, kind: int, numpy: type, scale: float | None) -> None:
    random = np.random.default_rng(head_size)
    feeds: dict[str, np.ndarray] = {
        name: random.standard_normal((2, heads, length, head_size)).astype(numpy)
        for name, heads, length in (("q", HEADS, SEQ), ("k", KV_HEADS, CACHE), ("v", KV_HEADS, CACHE))
    }
    feeds["mask"] = np.tril(np.ones((SEQ, CACHE), bool), CACHE - SEQ)[None, None].repeat(2, axis=0)
    model = with_loop_behind(attention_model(head_size, kind, scale))
    support_attention(model)
    assert "Attention" not in [node.op_type for node in model.graph.node]
    expected = oracle(feeds, 1.0 / np.sqrt(head_size) if scale is None else scale)
    np.testing.assert_allclose(run(model, feeds), expected, atol=4e-3 if numpy is np.float16 else 1e-6)


def test_attention_after_a_loop_stays_one_node() -> None:
    model = with_loop_behind(attention_model(16, TensorProto.FLOAT, None))
    loop = [node for node in model.graph.node if node.op_type != "Attention"]
    attention = [node for node in model.graph.node if node.op_type == "Attention"]
    del model.graph.node[:]
    model.graph.node.extend([*loop, *attention])
    support_attention(model)
    assert [node.op_type for node in model.graph.node] == ["Constant", "Scan", "Attention"]


@pytest.mark.parametrize(
    ("head_size", "kind", "padded"),
    [
        (10, TensorProto.FLOAT16, True),
        (10, TensorProto.BFLOAT16, True),
        (10, TensorProto.FLOAT, False),
        (24, TensorProto.FLOAT16, False),
    ],
)
def test_only_odd_sizes_in_16_bits_are_padded(head_size: int, kind: int, padded: bool) -> None:
    model = attention_model(head_size, kind, None)
    support_attention(model)
    assert [node.op_type for node in model.graph.node].count("Pad") == (3 if padded else 0)
