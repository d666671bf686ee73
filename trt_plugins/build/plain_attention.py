"""Attention as single operators, for graphs in which TensorRT cannot compile its own attention.

TensorRT-RTX 1.7 crashes (segmentation fault) when it compiles a loop after a native attention layer, whatever
either computes. It compiles the loop behind the same attention written out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LOOPS = frozenset({"Scan", "Loop"})
HIDDEN_SCORE = float(np.finfo(np.float32).min)


def last_loop(model: onnx.ModelProto) -> int:
    """Index of the last node of the main graph that is a loop or whose function holds one; -1 without any."""
    looping = {(f.domain, f.name) for f in model.functions if any(node.op_type in LOOPS for node in f.node)}
    loops = [
        index
        for index, node in enumerate(model.graph.node)
        if node.op_type in LOOPS or (node.domain, node.op_type) in looping
    ]
    return loops[-1] if loops else -1


def plain_attention(
    node: onnx.NodeProto, heads: int, kv_heads: int, head_size: int, dtype: int
) -> list[onnx.NodeProto]:
    """Operators in place of ``node``, an Attention with a boolean mask [batch, 1, seq, keys] and a scale.

    query [batch, heads, seq, head_size], key and value [batch, kv_heads, keys, head_size] of ONNX type ``dtype``. The
    softmax is in float32; the scale multiplies the query, so that scores stay in the range of 16 bits.
    """
    query, key, value, mask = node.input[:4]
    stem = f"{node.output[0]}.plain"
    nodes: list[onnx.NodeProto] = []

    def op(op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"{stem}.{name}"], name=f"{stem}.{name}", **attributes))
        return nodes[-1].output[0]

    def constant(name: str, array: np.ndarray) -> str:
        return op("Constant", name, value=numpy_helper.from_array(array))

    scale = next(attribute.f for attribute in node.attribute if attribute.name == "scale")
    group = constant("group", np.array([2]))
    factor = op("Cast", "factor", constant("scale", np.array(scale, np.float32)), to=dtype)
    shape = constant("groups", np.array([0, kv_heads, heads // kv_heads, -1, head_size]))
    queries = op("Reshape", "queries", op("Mul", "scaled", query, factor), shape)
    keys = op("Transpose", "keys", op("Unsqueeze", "key", key, group), perm=[0, 1, 2, 4, 3])
    scores = op("Cast", "scores", op("MatMul", "products", queries, keys), to=TensorProto.FLOAT)
    hidden = constant("hidden", np.array(HIDDEN_SCORE, np.float32))
    visible = op("Where", "visible", op("Unsqueeze", "mask", mask, group), scores, hidden)
    weights = op("Cast", "weights", op("Softmax", "softmax", visible, axis=-1), to=dtype)
    results = op("MatMul", "results", weights, op("Unsqueeze", "value", value, group))
    back = constant("heads", np.array([0, heads, -1, head_size]))
    nodes.append(helper.make_node("Reshape", [results, back], [node.output[0]], name=f"{stem}.output"))
    return nodes
