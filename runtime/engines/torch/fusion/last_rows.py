"""The end of a model for the last token of each row alone, as nothing else of it is read.

A LastToken node moves up past every node that treats each token by itself, as far as a value that other tokens need
too: what a state or a cache is computed from, or the result of the operator that does.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.last_token import LAST_TOKEN
from hybridge.runtime.engines.torch.fusion.linear import LINEAR, TILED_LINEAR, changed, is_plain_with_norm, take
from hybridge.runtime.engines.torch.graph import DOMAIN, constant_ints, fuse, is_constant, is_inner, producer, rank

_PRODUCTS = frozenset({(DOMAIN, LINEAR), (DOMAIN, TILED_LINEAR)})
_NORMS = frozenset({("", "RMSNormalization"), *((DOMAIN, name) for name in ("GroupedNorm", "WideNorm", "GatedNorm"))})
_ELEMENTWISE = frozenset({(DOMAIN, "Silu"), *(("", name) for name in ("Add", "Mul", "Sub", "Div", "Sigmoid", "Cast"))})
# Kernels read slices that begin at a multiple of this many elements.
_ALIGNED = 8


def leave_out_other_tokens(graph: ir.Graph) -> None:
    """Move each LastToken node up as far as it goes."""
    waiting = [node for node in graph if (node.domain, node.op_type) == (DOMAIN, LAST_TOKEN)]
    known = {node.inputs[0]: node for node in waiting}
    while waiting:
        last = waiting.pop()
        value = last.inputs[0]
        assert value is not None
        if not is_inner(value):  # other nodes read other tokens, for now
            continue
        source, axes = value.producer(), value.shape
        if source is None or axes is None or last.graph is None:
            continue
        moved = _Mover(graph, last, known, axes[:2])
        if moved.past(source, value):
            del known[value]
            waiting = [node for node in known.values() if node.graph is not None]


class _Mover:
    """Replaces one LastToken node. known: those that there are, by what they read; axes: batch and tokens."""

    def __init__(self, graph: ir.Graph, last: ir.Node, known: dict, axes: tuple) -> None:
        self._graph, self._last, self._known, self._axes = graph, last, known, axes

    def past(self, source: ir.Node, value: ir.Value) -> bool:
        """Compute the node's result from inputs of ``source``, which computes ``value``; False if that cannot be."""
        kind = source.domain, source.op_type
        if kind == ("", "Split"):
            return self._past_split(source, value)
        if len(source.outputs) != 1 or kind not in _PRODUCTS | _NORMS | _ELEMENTWISE | {("", "Reshape")}:
            return False
        inputs = list(source.inputs)
        if kind == ("", "Reshape"):
            shape = constant_ints(inputs[1])
            if shape is None or shape[:2] != (0, 0) or len(shape) < 3 or 0 in shape[2:]:
                return False
            inputs[1] = self._constant(f"{value.name}.last.axes", [0, *shape[2:]])
        of_tokens = [each is not None and not is_constant(each) for each in inputs]
        if not all(self._is_of_tokens(each) for each, own in zip(inputs, of_tokens, strict=True) if own):
            return False
        if kind in _ELEMENTWISE and any((rank(each) or 0) > 1 for each in inputs if is_constant(each)):
            return False
        given = [self._of_last(each) if own else each for each, own in zip(inputs, of_tokens, strict=True)]
        attributes = {name: attribute.value for name, attribute in source.attributes.items()}
        fuse([self._last.outputs[0]], source.op_type, given, attributes, source.domain)
        self._graph.remove([self._last, source], safe=True)
        return True

    def _past_split(self, split: ir.Node, value: ir.Value) -> bool:
        """The same where ``value`` is the first or last part of a product: the other parts get one of their own."""
        linear, sizes = producer(split.inputs[0], LINEAR, DOMAIN), constant_ints(split.inputs[1])
        parts, place = list(split.outputs), list(split.outputs).index(value)
        if linear is None or sizes is None or split.attributes.get_int("axis", 0) != -1:
            return False
        x, weight = take(linear, "x"), take(linear, "weight")
        if not is_plain_with_norm(linear) or not is_inner(split.inputs[0]) or not self._is_of_tokens(x):
            return False
        if place not in (0, len(parts) - 1) or sizes[place] % _ALIGNED or weight is None or rank(weight) != 2:
            return False
        others = [size for index, size in enumerate(sizes) if index != place]
        own, rest = self._rows(linear, weight, sizes[place], sum(others), first=place == 0)
        norm = {"x": self._of_last(x), "weight": own}
        changed(linear, self._last.outputs[0], **norm)
        return self._cut_rest(split, linear, [part for part in parts if part is not value], others, rest)

    def _cut_rest(
        self, split: ir.Node, linear: ir.Node, parts: list[ir.Value], sizes: list[int], weight: ir.Value
    ) -> bool:
        product = ir.Value(name=f"{linear.outputs[0].name}.rest", type=linear.outputs[0].type)
        product.shape = ir.Shape([*self._axes, sum(sizes)])
        inputs = [weight if each is take(linear, "weight") else each for each in linear.inputs]
        node = ir.Node(DOMAIN, LINEAR, inputs, linear.attributes.values(), outputs=[product])
        self._graph.insert_before(linear, node)
        if len(parts) == 1:
            ir.convenience.replace_all_uses_with(parts[0], product)
        else:
            fuse(parts, "Split", [product, self._constant(f"{product.name}.sizes", sizes)], {"axis": -1}, domain="")
        self._graph.remove([self._last, split, linear], safe=True)
        return True

    def _rows(self, linear: ir.Node, weight: ir.Value, own: int, rest: int, first: bool) -> tuple[ir.Value, ir.Value]:
        """The rows of ``weight`` [own + rest, in] for the part and for the others, as slices of it."""
        sizes = self._constant(f"{weight.name}.last.sizes", [own, rest] if first else [rest, own])
        node = ir.node("Split", [weight, sizes], {"axis": 0}, num_outputs=2)
        assert weight.shape is not None
        for index, (value, size) in enumerate(zip(node.outputs, (own, rest) if first else (rest, own), strict=True)):
            value.name, value.type = f"{weight.name}.last{index}", weight.type
            value.shape = ir.Shape((size, weight.shape[1]))
        self._graph.insert_before(linear, node)
        one, other = node.outputs
        return (one, other) if first else (other, one)

    def _is_of_tokens(self, value: ir.Value | None) -> bool:
        """Whether it has the axes batch and tokens, and others after them."""
        return value is not None and value.shape is not None and len(value.shape) > 2 and value.shape[:2] == self._axes

    def _of_last(self, value: ir.Value | None) -> ir.Value:
        """``value`` at the last token of each row."""
        assert value is not None and value.shape is not None
        if value not in self._known:
            node = ir.node(LAST_TOKEN, [value, *self._last.inputs[1:]], domain=DOMAIN)
            found = node.outputs[0]
            found.name, found.type = f"{value.name}.last", value.type
            found.shape = ir.Shape([value.shape[0], *value.shape[2:]])
            self._graph.insert_before(self._last, node)
            self._known[value] = node
        return self._known[value].outputs[0]

    def _constant(self, name: str, numbers: list[int]) -> ir.Value:
        node = ir.node("Constant", [], {"value_ints": numbers})
        node.outputs[0].name = name
        self._graph.insert_before(self._last, node)
        return node.outputs[0]
