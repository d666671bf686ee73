"""Matrix products with what surrounds them: bias, activation, residual, change of type, the norm before them.

A ``Linear`` node has the inputs ``INPUTS``, None for absent ones, and computes with W = weight [out, in]
    activation(norm(x) · Wᵀ + bias) + residual
Attributes: activation, one of none, relu2 and silu_gate (silu(x · Wᵀ) * (x · Uᵀ) with U = up_weight); epsilon of the
norm, where there is a norm_weight; dtype of the result (ONNX's number), where it is not that of x. The node that
computes the logits of a decode step has one more input: where to put them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from hybridge.artifact.names import LOGITS
from hybridge.runtime.engines.torch.fusion.grouped_norm import silu_argument
from hybridge.runtime.engines.torch.graph import (
    DOMAIN,
    RESULT,
    clean_graph,
    constant_ints,
    engine_input,
    fuse,
    is_constant,
    is_inner,
    only_use,
    producer,
    rank,
)

LINEAR = "Linear"
TILED_LINEAR = "TiledLinear"  # quantized.py
INPUTS = ("x", "weight", "up_weight", "bias", "residual", "norm_weight")
TILED_INPUTS = (*INPUTS, "factors", "up_factors")


def linears(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every Linear node; the graph may change during the iteration."""
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, LINEAR) and node.graph is not None:
            yield node


def take(node: ir.Node, name: str) -> ir.Value | None:
    """The input of a Linear node of that name."""
    return node.inputs[INPUTS.index(name)]


def is_plain(node: ir.Node | None) -> bool:
    """Whether a Linear node is a matrix product and nothing else."""
    return node is not None and all(value is None for value in node.inputs[2:]) and _activation(node) == "none"


def is_plain_with_norm(node: ir.Node) -> bool:
    """Whether a Linear node is a matrix product and nothing else but the norm before it."""
    extras = (take(node, name) for name in ("up_weight", "bias", "residual"))
    return all(value is None for value in extras) and _activation(node) == "none" and "dtype" not in node.attributes


def fuse_linears(graph: ir.Graph) -> None:
    """Make a Linear node of every product with a constant matrix, and let it take in what follows it."""
    for node in list(graph):
        _fuse_product(node)
    for absorb in (_absorb_bias, _absorb_relu2):
        for node in linears(graph):
            absorb(node)
    for node in list(graph):
        _fuse_gate(node)
    for absorb in (_absorb_residual, _absorb_cast):
        for node in linears(graph):
            absorb(node)


def fuse_norms_into_linears(graph: ir.Graph) -> None:
    """Let a Linear node normalise its input itself where it is the only one that reads it so."""
    for node in linears(graph):
        x = take(node, "x")
        norm = producer(x, "RMSNormalization")
        if norm is None or not is_inner(x) or norm.outputs[0].dtype != norm.inputs[0].dtype:  # type: ignore[union-attr]
            continue
        epsilon = norm.attributes.get_float("epsilon", 1e-5)
        changed(node, node.outputs[0], x=norm.inputs[0], norm_weight=norm.inputs[1], epsilon=epsilon)


def let_head_write_its_result(graph: ir.Graph) -> None:
    """Give the Linear node that computes the graph's logits, if one does, memory for them."""
    logits = next((value for value in graph.outputs if value.name == LOGITS), None)
    node = producer(logits, LINEAR, DOMAIN) or producer(logits, TILED_LINEAR, DOMAIN)
    if node is not None:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        fuse([node.outputs[0]], node.op_type, [*node.inputs, engine_input(graph, RESULT)], attributes)
        clean_graph(graph)


def changed(node: ir.Node, value: ir.Value, **changes: object) -> ir.Node:
    """A Linear node like ``node`` in which some inputs and attributes differ; it computes ``value``."""
    given = {name: changes.pop(name, value) for name, value in zip(INPUTS, node.inputs, strict=True)}
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return fuse([value], LINEAR, list(given.values()), {**attributes, **changes})  # type: ignore[arg-type]


def _fuse_product(node: ir.Node) -> None:
    if (node.domain, node.op_type) != ("", "MatMul"):
        return
    transpose = producer(node.inputs[1], "Transpose")
    if transpose is None or tuple(transpose.attributes["perm"].as_ints()) != (1, 0):
        return
    weight = transpose.inputs[0]
    if weight is None or not is_constant(weight) or rank(weight) != 2:
        return
    output = node.outputs[0]
    fuse([output], LINEAR, [node.inputs[0], weight, None, None, None, None], {"activation": "none"})


def _absorb_bias(node: ir.Node) -> None:
    found = _operand(node, "Add")
    if found is not None and is_constant(found[1]) and rank(found[1]) == 1 and is_plain(node):
        changed(node, found[0].outputs[0], bias=found[1])


def _absorb_relu2(node: ir.Node) -> None:
    relu = only_use(node.outputs[0], "Relu")
    if relu is None or _activation(node) != "none":
        return
    users = {use.node for use in relu.outputs[0].uses()}
    square = next(iter(users)) if len(users) == 1 else None
    if square is None or square.op_type != "Mul" or relu.outputs[0].is_graph_output():
        return
    if square.inputs[0] is square.inputs[1]:
        changed(node, square.outputs[0], activation="relu2")


def _fuse_gate(node: ir.Node) -> None:
    """silu(g) * u of two products of one x, or of the halves of one."""
    if (node.domain, node.op_type) != ("", "Mul") or node.graph is None:
        return
    for silu, up in (node.inputs, reversed(node.inputs)):
        gate = silu_argument(silu)
        if gate is None or up is None or not is_inner(up) or not is_inner(silu) or len(list(gate.uses())) != 2:
            continue
        weights = _two_products(gate, up) or _two_halves(gate, up)
        if weights is not None:
            x, gate_weight, up_weight = weights
            inputs = [x, gate_weight, up_weight, None, None, None]
            fuse([node.outputs[0]], LINEAR, inputs, {"activation": "silu_gate"})
            return


def _two_products(gate: ir.Value, up: ir.Value) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None] | None:
    first, second = producer(gate, LINEAR, DOMAIN), producer(up, LINEAR, DOMAIN)
    if first is None or second is None or not (is_plain(first) and is_plain(second)):
        return None
    if take(first, "x") is not take(second, "x"):
        return None
    return take(first, "x"), take(first, "weight"), take(second, "weight")


def _two_halves(gate: ir.Value, up: ir.Value) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None] | None:
    """The rows of one weight in two, where gate and up are the halves of its product."""
    split = producer(gate, "Split")
    if split is None or list(split.outputs) != [gate, up] or not is_inner(split.inputs[0]):
        return None
    node, sizes = producer(split.inputs[0], LINEAR, DOMAIN), constant_ints(split.inputs[1])
    if node is None or not is_plain(node) or sizes is None or split.attributes.get_int("axis", 0) != -1:
        return None
    weight = take(node, "weight")
    assert node.graph is not None and weight is not None
    halves = ir.node("Split", [weight, split.inputs[1]], {"axis": 0}, num_outputs=2)
    for index, value in enumerate(halves.outputs):
        value.name, value.shape = f"{weight.name}.part{index}", ir.Shape((sizes[index], weight.shape[1]))  # type: ignore[index]
    node.graph.insert_before(node, halves)  # type: ignore[union-attr]
    return take(node, "x"), halves.outputs[0], halves.outputs[1]


def _absorb_residual(node: ir.Node) -> None:
    found = _operand(node, "Add")
    if found is None or take(node, "residual") is not None or node.outputs[0].dtype is None:
        return
    add, other = found
    if other.dtype == node.outputs[0].dtype and not is_constant(other) and rank(other) == rank(node.outputs[0]):
        changed(node, add.outputs[0], residual=other)


def _absorb_cast(node: ir.Node) -> None:
    cast = only_use(node.outputs[0], "Cast")
    if cast is not None and cast.attributes.get_int("to") == int(ir.DataType.FLOAT) and take(node, "residual") is None:
        changed(node, cast.outputs[0], dtype=int(ir.DataType.FLOAT))


def _operand(node: ir.Node, op_type: str) -> tuple[ir.Node, ir.Value] | None:
    """The one reader of the node's result, of that operator, and the other value that it reads."""
    user = only_use(node.outputs[0], op_type)
    if user is None:
        return None
    other = user.inputs[1] if user.inputs[0] is node.outputs[0] else user.inputs[0]
    return None if other is None else (user, other)


def _activation(node: ir.Node) -> str:
    return node.attributes["activation"].as_string()
