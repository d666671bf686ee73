"""Activations that ONNX Runtime computes with a small absolute error only, as operators accurate in both tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.trt_plugins.activations import gelu, gelu_tanh, sigmoid_divisor
from hybridge.trt_plugins.e4m3 import Nodes

# ScaledSiLU is a scalar loop. Up to this row size it is faster than four nodes with vector loops, whose code the
# weights have evicted from the processor's caches (1,024 values: 4 and 20 us).
_FEW_VALUES = 4096


class _NodesBefore:
    """Inserts nodes before ``node``, in its graph, subgraph or function."""

    def __init__(self, node: ir.Node) -> None:
        self._before = node

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or None)
        assert self._before.graph is not None
        self._before.graph.insert_before(self._before, node)
        node.outputs[0].type, node.outputs[0].shape = self._before.outputs[0].type, self._before.outputs[0].shape
        return node.outputs[0]

    def array(self, value: np.ndarray) -> ir.Value:
        # A function has no initializers.
        constant = self.op("Constant", value=ir.tensor(value))
        constant.type, constant.shape = ir.TensorType(ir.DataType.from_numpy(value.dtype)), ir.Shape(value.shape)
        return constant


def use_exact_activations(model: ir.Model, scaled_silu: bool = False) -> None:
    """Replace every Sigmoid and Gelu of a graph in float32, its functions and subgraphs, in place.

    Guards of a Softplus against overflow are removed too: ONNX Runtime's does not overflow. scaled_silu: the graph
    computes one token at a time, and a SiLU of short rows becomes one ScaledSiLU.
    """
    if scaled_silu:
        for node in list(model.graph):
            if not node.domain and node.op_type == "Mul":
                _replace_silu(node)
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in list(graph.all_nodes()):
            if not node.domain and node.op_type in _EXACT:
                _EXACT[node.op_type](node)


def _replace_silu(product: ir.Node) -> None:
    for x, factor in (product.inputs, product.inputs[::-1]):
        sigmoid = None if factor is None else factor.producer()
        if x is None or factor is None or sigmoid is None or (sigmoid.domain, sigmoid.op_type) != ("", "Sigmoid"):
            continue
        width = x.shape[-1] if x.shape else None
        if sigmoid.inputs[0] is x and isinstance(width, int) and width <= _FEW_VALUES:
            graph = product.graph
            assert isinstance(graph, ir.Graph)
            silu = Inserter(graph, product).microsoft("ScaledSiLU", x, alpha=1.0)
            replace_node(product, [silu])
            if not (factor.is_graph_output() or factor.uses()):
                graph.remove(sigmoid, safe=True)
            return


def _replace_sigmoid(node: ir.Node) -> None:
    x, factor, before = node.inputs[0], node.outputs[0], _NodesBefore(node)
    assert x is not None and node.graph is not None
    divisor = sigmoid_divisor(before, x)
    for product in list(factor.consumers()):
        others = [value for value in product.inputs if value is not None and value is not factor]
        if not product.domain and product.op_type == "Mul" and product.graph is node.graph and len(others) == 1:
            replace_node(product, [_NodesBefore(product).op("Div", others[0], divisor)])
    if factor.is_graph_output() or factor.uses():
        replace_node(node, [before.op("Reciprocal", divisor)])
    else:
        node.graph.remove(node, safe=True)


def _replace_softplus(node: ir.Node) -> None:
    """Where(x > limit, x, Softplus(x)), for engines whose Softplus overflows, becomes Softplus(x)."""
    _, x, softplus = node.inputs
    source = None if softplus is None else softplus.producer()
    condition = None if node.inputs[0] is None else node.inputs[0].producer()
    if source is None or condition is None or softplus is None:
        return
    compared = condition.inputs[0] if (condition.domain, condition.op_type) == ("", "Greater") else None
    if (source.domain, source.op_type) == ("", "Softplus") and source.inputs[0] is x is compared:
        replace_node(node, [softplus])


def _replace_gelu(node: ir.Node) -> None:
    x = node.inputs[0]
    assert x is not None
    exact: Callable[[Nodes[ir.Value], ir.Value], ir.Value] = (
        gelu_tanh if node.attributes.get_string("approximate", "none") == "tanh" else gelu
    )
    replace_node(node, [exact(_NodesBefore(node), x)])


_EXACT: Mapping[str, Callable[[ir.Node], None]] = MappingProxyType(
    {"Sigmoid": _replace_sigmoid, "Gelu": _replace_gelu, "Where": _replace_softplus}
)
