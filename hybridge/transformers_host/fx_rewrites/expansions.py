"""Operators over expanded tensors compute each value once: the expansion moves behind them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import aten, call, fixed_shape, replace

_POINTWISE = {
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.neg.default,
    aten.exp.default,
    aten.softplus.default,
    aten.sigmoid.default,
    aten.silu.default,
    aten.clamp.default,
    aten.clamp_min.default,
}


def expand_late(graph: Graph) -> None:
    """For tensors of fixed shapes."""
    for node in list(graph.nodes):
        if node.target in _POINTWISE:
            _narrow_arguments(graph, node)
        elif node.target is aten.unsqueeze.default:
            _unsqueeze_source(graph, node)
        elif node.target is aten.repeat_interleave.self_int:
            _expand_repeats(graph, node)


def _narrow_arguments(graph: Graph, node: Node) -> None:
    narrow = tuple(_source(argument) for argument in node.args)
    shape, sizes = fixed_shape(node), [fixed_shape(argument) for argument in narrow if isinstance(argument, Node)]
    if narrow == node.args or shape is None or None in sizes:
        return
    # What needs no expansion for its own sake is broadcast.
    if tuple(torch.broadcast_shapes(*(size for size in sizes if size is not None))) == shape:
        node.args = narrow
        return
    with graph.inserting_before(node):
        computed = call(graph, node.target, *narrow, **node.kwargs)
        expanded = call(graph, aten.expand.default, computed, list(shape))
    replace(node, expanded)


def _unsqueeze_source(graph: Graph, node: Node) -> None:
    source, shape = _source(node.args[0]), fixed_shape(node)
    if source is node.args[0] or shape is None:
        return
    with graph.inserting_before(node):
        unsqueezed = call(graph, aten.unsqueeze.default, source, *node.args[1:])
        expanded = call(graph, aten.expand.default, unsqueezed, list(shape))
    replace(node, expanded)


def _expand_repeats(graph: Graph, node: Node) -> None:
    """Repeating as an expansion, which a CPU copies several times faster."""
    repeats, axis = (*node.args[1:3], None)[:2]
    inner, outer = fixed_shape(node.args[0]), fixed_shape(node)
    if inner is None or outer is None or not isinstance(axis, int) or not isinstance(repeats, int):
        return
    axis %= len(inner)
    with graph.inserting_before(node):
        column = call(graph, aten.unsqueeze.default, node.args[0], axis + 1)
        expanded = call(graph, aten.expand.default, column, [*inner[: axis + 1], repeats, *inner[axis + 1 :]])
        repeated = call(graph, aten.reshape.default, expanded, list(outer))
    replace(node, repeated)


def _source(argument: Any) -> Any:
    """The tensor of the same rank that was expanded to ``argument``; else ``argument``."""
    if not isinstance(argument, Node) or argument.target is not aten.expand.default:
        return argument
    inner, outer = fixed_shape(argument.args[0]), fixed_shape(argument)
    return argument.args[0] if inner is not None and outer is not None and len(inner) == len(outer) else argument
