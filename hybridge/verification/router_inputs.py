"""The values of an artifact's graph from which routers choose experts."""

from __future__ import annotations

from pathlib import Path

import onnx

from hybridge.artifact.onnx_file import read_onnx
from hybridge.artifact.path_kind import MODEL_FILE

# Operators of experts; their second input has the numbers of the experts of each token.
_EXPERTS = ("routed_experts", "rounded_experts")
# What a router's logits pass through: of a MatMul the first input is a token's, the second the router's weight.
_PRODUCT = "MatMul"
# What its weight passes through.
_FORMS = ("Cast", "Transpose")


def router_inputs(artifact: Path) -> dict[str, str]:
    """A map from the weight of each router to the value [..., features] that it is multiplied by, in layers' order.

    ArtifactError: the graph cannot be read.
    """
    graph = read_onnx(artifact, MODEL_FILE).model.graph
    producers = {output: node for node in graph.node for output in node.output}
    found: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in _EXPERTS:
            product = _product(producers, node.input[1])
            if product is not None:
                value, weight = product.input
                found[_stored(producers, weight)] = _rounded(producers, value)
    return found


def _product(producers: dict[str, onnx.NodeProto], ids: str) -> onnx.NodeProto | None:
    """The nearest product before the experts' numbers ``ids``: that of the router."""
    left, seen = [ids], {ids}
    while left:
        node = producers.get(left.pop(0))
        if node is None:
            continue
        if node.op_type == _PRODUCT:
            return node
        left += [name for name in node.input if name not in seen]
        seen |= set(node.input)
    return None


def _rounded(producers: dict[str, onnx.NodeProto], name: str) -> str:
    """The value that a cast to float32 widens to ``name``; what another cast rounds is not what the router reads."""
    node = producers.get(name)
    widens = node is not None and node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.FLOAT
    return node.input[0] if node is not None and widens else name


def _stored(producers: dict[str, onnx.NodeProto], name: str) -> str:
    """The weight whose type or axes the nodes that compute ``name`` change."""
    while name in producers and producers[name].op_type in _FORMS:
        name = producers[name].input[0]
    return name
