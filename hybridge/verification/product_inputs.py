"""The values of an artifact's graph that products round before they use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import onnx

from hybridge.artifact.onnx_file import read_onnx
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.verification.rounded_products import experts_name, use_name

_UP = 3  # input of rounded_experts: the weights of the first products
_MATRIX, _WEIGHT = ".dequantized", ".weight"
# Outputs of the nodes that round an input.
_ROUNDING = re.compile(r"\.input\.\d+\.\d+$")
_Producers = Mapping[str, onnx.NodeProto]


def product_inputs(artifact: Path) -> dict[str, str]:
    """A map from modules of the checkpoint to the value [..., features] that their product rounds.

    For the experts of a layer, by ``experts_name``, it is what their first products round. A value is multiplied by
    the module's factors, if it has any. Of a module that several layers share, each product has a ``use_name``.
    ArtifactError: the graph cannot be read.
    """
    graph = read_onnx(artifact, MODEL_FILE).model.graph
    producers = {output: node for node in graph.node for output in node.output}
    found: dict[str, list[str]] = {}
    for node in graph.node:
        if node.op_type == "MatMul" and not node.domain:
            matrix = _before(producers, "Transpose", node.input[1])
            value = _rounded(producers, node.input[0])
            if value is not None and matrix.endswith(_MATRIX):
                module = matrix.removesuffix(_MATRIX).removesuffix(_WEIGHT)
                found.setdefault(module, []).append(_in_order(producers, value))
        elif node.op_type == "rounded_experts":
            found.setdefault(experts_name(node.input[_UP]), []).append(node.input[0])
    return {use_name(module, use): value for module, values in found.items() for use, value in enumerate(values)}


def _before(producers: _Producers, op_type: str, value: str) -> str:
    """The input of the node ``op_type`` that computes ``value``; ``value`` where another node computes it."""
    node = producers.get(value)
    return value if node is None or node.op_type != op_type else node.input[0]


def _in_order(producers: _Producers, value: str) -> str:
    """``value`` before a Gather that reorders its columns to match a weight."""
    node = producers.get(value)
    is_order = node is not None and node.op_type == "Gather" and node.input[1].endswith("_order")
    return node.input[0] if node is not None and is_order else value


def _rounded(producers: _Producers, value: str) -> str | None:
    """What the nodes that compute ``value`` round; None if they round nothing."""
    left = [value] if _ROUNDING.search(value) else []
    while left:
        for name in producers[left.pop()].input:
            if _ROUNDING.search(name):
                left.append(name)
            elif name in producers and producers[name].op_type != "Constant":
                return name
    return None
