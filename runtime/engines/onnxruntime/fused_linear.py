"""Products by the operator Linear together with what is around them: norms, sums and gates, as one FusedLinear each.

A step of one token has many nodes that do little. Each costs a few microseconds, besides what it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.linear_form import ACTIVATIONS
from hybridge.runtime.engines.onnxruntime.stored_products import OPERATOR as LINEAR

OPERATOR = "FusedLinear"
# Weights of one node, and its inputs: x, the norm's weight, what is added, and three for each weight.
MOST_WEIGHTS = 4
FIRST_WEIGHT, WEIGHT_INPUTS = 3, 3
# A norm is computed again by each node that reads it.
_MOST_NORMS = 2
_GELUS: Mapping[str, str] = MappingProxyType({"none": "gelu", "tanh": "gelu_pytorch_tanh"})


@dataclass(frozen=True)
class _Fused:
    """Products of one input that become one node; its outputs take the place of ``outputs``.

    last: the last of the nodes that it replaces. activation: of the first of two products, which is multiplied with the
    second. total: the sum that its only output is a term of.
    """

    linears: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]
    last: ir.Node
    activation: int = -1
    norm: ir.Node | None = None
    total: ir.Node | None = None


def use_fused_linear(model: ir.Model) -> None:
    """Replace Linear nodes and their neighbours by FusedLinear where this makes fewer nodes."""
    found = [*_gates(model.graph)]
    gated = {node for fused in found for node in fused.linears}
    found += _siblings([node for node in model.graph if _is_linear(node) and node not in gated])
    found = [_with_sum(fused) for fused in found]
    by_norm: dict[ir.Node, list[_Fused]] = {}
    for fused in found:
        norm = _norm(fused.linears[0].inputs[0])
        if norm is not None:
            by_norm.setdefault(norm, []).append(fused)
    norms = {
        norm: users
        for norm, users in by_norm.items()
        if len(users) <= _MOST_NORMS and set(norm.outputs[0].consumers()) == {n for user in users for n in user.linears}
    }
    for fused in found:
        norm = _norm(fused.linears[0].inputs[0])
        whole = replace(fused, norm=norm) if norm in norms else fused
        if len(whole.linears) > 1 or whole.norm is not None or whole.total is not None:
            _replace(model.graph, whole)


def _gates(graph: ir.Graph) -> Iterator[_Fused]:
    """Every activation(first product) * second product of the same input."""
    for product in graph:
        if product.op_type != "Mul" or product.domain or len(product.inputs) != 2:
            continue
        for gate, factor in (product.inputs, product.inputs[::-1]):
            source = _activated(gate, product)
            if source is None or factor is None:
                continue
            first, second = source[0].producer(), factor.producer()
            if first is None or second is None or first is second or not _is_alike(first, second):
                continue
            if _rows(first) == _rows(second) and _is_only_read_by(factor, {product}):
                yield _Fused((first, second), (product.outputs[0],), product, ACTIVATIONS[source[1]])
                break


def _activated(gate: ir.Value | None, product: ir.Node) -> tuple[ir.Value, str] | None:
    """z and the activation, if ``gate`` is activation(z) and neither has another reader than ``product``."""
    node = None if gate is None else gate.producer()
    if gate is None or node is None or node.domain or not _is_only_read_by(gate, {product}):
        return None
    if node.op_type == "Gelu" and node.inputs[0] is not None and _is_only_read_by(node.inputs[0], {node}):
        return node.inputs[0], _GELUS[node.attributes.get_string("approximate", "none")]
    for z, factor in (node.inputs, node.inputs[::-1]) if node.op_type == "Mul" else ():
        sigmoid = None if factor is None else factor.producer()
        if z is None or factor is None or sigmoid is None or (sigmoid.domain, sigmoid.op_type) != ("", "Sigmoid"):
            continue
        if sigmoid.inputs[0] is z and _is_only_read_by(factor, {node}) and _is_only_read_by(z, {node, sigmoid}):
            return z, "silu"
    return None


def _siblings(linears: Sequence[ir.Node]) -> Iterator[_Fused]:
    """``linears`` in groups of one input and one form."""
    groups: list[list[ir.Node]] = []
    for node in linears:
        group = next((group for group in groups if len(group) < MOST_WEIGHTS and _is_alike(group[0], node)), None)
        if group is None:
            groups.append([node])
        else:
            group.append(node)
    for group in groups:
        yield _Fused(tuple(group), tuple(node.outputs[0] for node in group), group[0])


def _with_sum(fused: _Fused) -> _Fused:
    """``fused`` with the sum that its only output is a term of."""
    output = fused.outputs[0]
    readers = list(output.consumers())
    if len(fused.linears) > 1 or output.is_graph_output() or len(readers) != 1:
        return fused
    (total,) = readers
    if total.op_type != "Add" or total.domain or list(total.inputs).count(output) != 1:
        return fused
    other = next(value for value in total.inputs if value is not output)
    if other is None or other.is_initializer() or not _same_shape(other, output):
        return fused
    return replace(fused, outputs=(total.outputs[0],), last=total, total=total)


def _norm(x: ir.Value | None) -> ir.Node | None:
    """The RMS norm of the last axis that ``x`` is, if nothing else than operators of this module may need it."""
    node = None if x is None else x.producer()
    if x is None or node is None or (node.domain, node.op_type) != ("", "RMSNormalization") or x.is_graph_output():
        return None
    weight, columns = fixed_shape(node.inputs[1]), fixed_shape(x)
    is_row = columns is not None and weight == columns[-1:] and node.attributes.get_int("axis", -1) == -1
    return node if is_row else None


def _replace(graph: ir.Graph, fused: _Fused) -> None:
    first, norm = fused.linears[0], fused.norm
    form = {name: value.value for name, value in first.attributes.items() if name != "rows"}
    rows = [_rows(node) for node in fused.linears] + [0] * (MOST_WEIGHTS - len(fused.linears))
    attributes: dict[str, Any] = {
        **form,
        **{f"rows_{index}": count for index, count in enumerate(rows)},
        "activation": fused.activation,
        "epsilon": 0.0 if norm is None else norm.attributes.get_float("epsilon", 1e-5),
    }
    x, weight = (first.inputs[0], None) if norm is None else (norm.inputs[0], norm.inputs[1])
    # Read now: other sums may have been replaced since.
    terms = () if fused.total is None else fused.total.inputs
    inputs = [x, weight, next((value for value in terms if value is not first.outputs[0]), None)]
    for node in fused.linears:
        weights = [*node.inputs[1:]]
        inputs += weights + [None] * (WEIGHT_INPUTS - len(weights))
    while inputs[-1] is None:
        inputs.pop()
    insert = Inserter(graph, fused.last)
    made = insert.op(OPERATOR, *inputs, domain=CPU_DOMAIN, outputs=len(fused.outputs), **attributes)
    made = made if isinstance(made, tuple) else (made,)
    # remove_dead_code removes the nodes before these.
    replaced = (fused.last,) if len(made) == 1 else fused.linears
    for node, new in zip(replaced, made, strict=True):
        replace_node(node, [new])


def _is_linear(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (CPU_DOMAIN, LINEAR)


def _is_alike(first: ir.Node, second: ir.Node) -> bool:
    """Whether both are products of the same input, prepared in the same way."""
    if not _is_linear(first) or not _is_linear(second) or first.inputs[0] is not second.inputs[0]:
        return False
    names = [name for name in first.attributes if name != "rows"]
    return all(first.attributes[name].value == second.attributes[name].value for name in names)


def _rows(linear: ir.Node) -> int:
    return linear.attributes["rows"].as_int()


def _is_only_read_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    return not value.is_graph_output() and set(value.consumers()) <= readers


def _same_shape(first: ir.Value, second: ir.Value) -> bool:
    if first.shape is None or second.shape is None:
        return False
    return tuple(first.shape.dims) == tuple(second.shape.dims) and None not in {
        size if isinstance(size, int) else size.value for size in first.shape.dims
    }
