"""Products of one x by several matrices as one product by all of them: fewer and larger kernels on a GPU."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.linear import LINEAR, is_plain, linears, take
from hybridge.runtime.engines.torch.fusion.quantized import stored_form
from hybridge.runtime.engines.torch.graph import clean_graph, fuse, is_constant
from hybridge.trt_plugins.kernels.fused.weight_tiles import WeightFormat


def merge_projections(graph: ir.Graph) -> None:
    """Merge plain Linear nodes that read the same x and whose weights are stored alike.

    The merged weights are computed once, when they are loaded.
    """
    by_x: dict[tuple[ir.Value, WeightFormat | None], list[ir.Node]] = {}
    for node in linears(graph):
        x, weight = take(node, "x"), take(node, "weight")
        if x is not None and weight is not None and is_plain(node) and not _is_output(node):
            by_x.setdefault((x, stored_form(weight)), []).append(node)
    for (x, _), nodes in by_x.items():
        if len(nodes) > 1:
            _merge(graph, x, nodes)
    clean_graph(graph)


def _merge(graph: ir.Graph, x: ir.Value, nodes: list[ir.Node]) -> None:
    weights = [take(node, "weight") for node in nodes]
    assert all(is_constant(weight) for weight in weights)
    sizes = [int(weight.shape[0]) for weight in weights]  # type: ignore[union-attr,index,arg-type]
    name = "+".join(str(weight.name) for weight in weights)  # type: ignore[union-attr]
    first = nodes[0].outputs[0]
    merged = _value(ir.node("Concat", weights, {"axis": 0}), name, first, (sum(sizes), *weights[0].shape[1:]))  # type: ignore
    split_sizes = ir.node("Constant", [], {"value_ints": sizes})
    split_sizes.outputs[0].name = f"{name}.sizes"
    graph.insert_before(nodes[0], [merged.producer(), split_sizes])  # type: ignore[list-item]
    outer = list(first.shape)[:-1] if first.shape is not None else []
    product = ir.Value(name=f"{name}.product", type=first.type, shape=ir.Shape([*outer, sum(sizes)]))
    linear = ir.Node(
        nodes[0].domain, LINEAR, [x, merged, None, None, None, None], nodes[0].attributes.values(), outputs=[product]
    )
    graph.insert_before(nodes[0], linear)
    fuse([node.outputs[0] for node in nodes], "Split", [product, split_sizes.outputs[0]], {"axis": -1}, domain="")


def _value(node: ir.Node, name: str, like: ir.Value, shape: tuple) -> ir.Value:
    value = node.outputs[0]
    value.name, value.type, value.shape = name, like.type, ir.Shape(shape)
    return value


def _is_output(node: ir.Node) -> bool:
    return node.outputs[0].is_graph_output()
