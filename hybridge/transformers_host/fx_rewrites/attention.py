"""Attention of grouped queries over keys and values that are not repeated for each query head."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import aten, on_cpu, single_use_of


def share_keys(graph: Graph) -> None:
    """On a CPU, whose kernel reads a key once for the query heads that share it."""
    for node in list(graph.nodes):
        if node.target is aten.scaled_dot_product_attention.default and on_cpu(node) and len(node.args) >= 3:
            key, value = (_before_repeating(argument) for argument in node.args[1:3])
            if key is not None and value is not None:
                node.args = (node.args[0], key, value, *node.args[3:])
                node.kwargs = {**node.kwargs, "enable_gqa": True}


def _before_repeating(tensor: Any) -> Node | None:
    """x [b, heads, s, d] of reshape(expand(unsqueeze(x, 2), [b, heads, group, s, d])); None for anything else."""
    reshaped = single_use_of(tensor, aten.reshape.default)
    expanded = reshaped and single_use_of(reshaped.args[0], aten.expand.default)
    unsqueezed = expanded and single_use_of(expanded.args[0], aten.unsqueeze.default)
    if not unsqueezed or unsqueezed.args[1] != 2 or tensor.meta["val"].ndim != 4:
        return None
    source = unsqueezed.args[0]
    return source if isinstance(source, Node) and source.meta["val"].ndim == 4 else None
