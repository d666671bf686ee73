"""A recurrent state that decays and adds a product, updated in place."""

from __future__ import annotations

from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import aten, fixed_shape, replace, single_use_of, value_of

# They return new memory, so their inputs may change afterwards.
_COPIES = {aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.sum.dim_IntList}


def update_states_in_place(graph: Graph) -> None:
    """copy_(state, state * decay + a * b) as two updates of ``state``, for tensors of fixed shapes."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and len(node.users) == 0:
            _update_in_place(graph, node, order)


def _update_in_place(graph: Graph, copy: Node, order: dict[Node, int]) -> None:
    state, added = copy.args[0], copy.args[1]
    if not isinstance(state, Node) or not isinstance(added, Node) or added.target is not aten.add.Tensor:
        return
    decayed, product = added.args[0], single_use_of(added.args[1], aten.mul.Tensor)
    if not isinstance(decayed, Node) or decayed.target is not aten.mul.Tensor or product is None:
        return
    if decayed.args[0] is not state or set(state.users) != {decayed, copy} or added.kwargs:
        return
    reads = [user for user in decayed.users if user is not added]
    if any(order[user] > order[added] or user.target not in _COPIES for user in reads):
        return
    if not _same_kind(state, decayed, added) or not all(isinstance(factor, Node) for factor in product.args):
        return
    with graph.inserting_before(decayed):
        smaller = graph.call_function(aten.mul_.Tensor, decayed.args)
    smaller.meta = dict(decayed.meta)
    with graph.inserting_before(added):
        larger = graph.call_function(aten.addcmul_.default, (smaller, *product.args))
    larger.meta = dict(added.meta)
    replace(decayed, smaller)
    replace(added, larger)
    graph.erase_node(copy)
    graph.erase_node(product)


def _same_kind(*nodes: Node) -> bool:
    values = [value_of(node) for node in nodes]
    shapes = {fixed_shape(node) for node in nodes}
    return len(shapes) == 1 and None not in shapes and len({value.dtype for value in values if value is not None}) == 1
