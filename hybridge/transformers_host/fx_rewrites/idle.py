"""Nodes that compute nothing."""

from __future__ import annotations

from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import aten, replace, value_of

_CHECKS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range_for_size.default,
}
# They return their first argument when shape, strides and type stay unchanged.
_IDLE = {
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.contiguous.default,
    aten.view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.alias.default,
    aten.type_as.default,
}


def remove_idle(graph: Graph) -> None:
    """Remove checks, and what returns its argument as it is."""
    for node in list(graph.nodes):
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif _may_be_idle(node) and isinstance(node.args[0], Node) and _same_layout(node.args[0], node):
            replace(node, node.args[0])


def _may_be_idle(node: Node) -> bool:
    return node.target in _IDLE or (node.target is aten.mul.Tensor and node.args[1:] == (1.0,))


def _same_layout(one: Node, other: Node) -> bool:
    a, b = value_of(one), value_of(other)
    if a is None or b is None:
        return False
    return (a.dtype, a.device, str(a.shape), str(a.stride())) == (b.dtype, b.device, str(b.shape), str(b.stride()))
