"""Names of quantising layers, which TensorRT's parser takes from their nodes and does not make unique."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

_NAMED_AFTER_NODES = frozenset({"QuantizeLinear", "DequantizeLinear"})


def name_layers_apart(model: onnx.ModelProto) -> None:
    """Give, in place, each call of a function with quantising nodes its own copy of it, with other node names.

    The parser refuses a second layer of one name. Functions that call such functions are not changed.
    """
    quantising = {(f.domain, f.name): f for f in model.functions if _quantises(f.node)}
    if not quantising:
        return
    others = [f for f in model.functions if (f.domain, f.name) not in quantising]
    copies = []
    for index, node in enumerate(model.graph.node):
        function = quantising.get((node.domain, node.op_type))
        if function is None:
            continue
        copy = onnx.FunctionProto()
        copy.CopyFrom(function)
        copy.name = node.op_type = f"{function.name}_{index}"
        for inner in _all_nodes(copy.node):
            inner.name = f"{node.name}.{inner.name}"
        copies.append(copy)
    del model.functions[:]
    model.functions.extend([*others, *copies])


def _quantises(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(node.op_type in _NAMED_AFTER_NODES and not node.domain for node in _all_nodes(nodes))


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """``nodes`` and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)
