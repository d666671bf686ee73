"""A depthwise convolution with a few outputs as products and sums, which a CPU does faster."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import aten, call, fixed_shape, on_cpu, only_user, replace, value_of

_SHORT = 4
_LAST = 2**63 - 1


def expand_convolutions(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target is aten.conv1d.default:
            _expand(graph, node)


def _expand(graph: Graph, node: Node) -> None:
    defaults: list[Any] = [None, [1], [0], [1], 1]
    arguments: list[Any] = [*node.args, *defaults[len(node.args) - 2 :]]
    x, weight, bias, stride, padding, dilation, groups = arguments
    value, result = value_of(weight), value_of(node)
    assert value is not None and result is not None
    plain = (list(stride), list(padding), list(dilation)) == ([1], [0], [1]) and groups == value.shape[0]
    outputs = result.shape[-1]
    if not plain or not isinstance(outputs, int) or outputs > _SHORT or not on_cpu(node):
        return
    if _only_last_is_used(node, outputs):
        _last_output(graph, node, x, weight, bias)
        return
    with graph.inserting_before(node):
        windows = call(graph, aten.unfold.default, x, 2, value.shape[-1], 1)
        sums = call(graph, aten.sum.dim_IntList, call(graph, aten.mul.Tensor, windows, weight), [-1])
        replacement = _with_bias(graph, sums, bias)
    replace(node, replacement)


def _last_output(graph: Graph, node: Node, x: Node, weight: Node, bias: Node | None) -> None:
    """Compute only the last output, instead of slicing it."""
    shape = fixed_shape(weight)
    user = only_user(node)
    assert shape is not None and user is not None
    with graph.inserting_before(user):
        window = call(graph, aten.slice.Tensor, x, 2, -shape[-1], _LAST)
        products = call(graph, aten.mul.Tensor, window, call(graph, aten.squeeze.dim, weight, 1))
        replacement = _with_bias(graph, call(graph, aten.sum.dim_IntList, products, [-1], True), bias)
    replace(user, replacement)
    graph.erase_node(node)


def _with_bias(graph: Graph, sums: Node, bias: Node | None) -> Node:
    if bias is None:
        return sums
    return call(graph, aten.add.Tensor, sums, call(graph, aten.unsqueeze.default, bias, -1))


def _only_last_is_used(node: Node, outputs: int) -> bool:
    user = only_user(node)
    if user is None or user.target is not aten.slice.Tensor or fixed_shape(user) is None:
        return False
    axis, start, end = (*user.args[1:4], None, None)[:3]
    return bool(axis == 2) and start in (-1, outputs - 1) and isinstance(end, int) and end >= outputs
