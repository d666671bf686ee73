"""RMS norms with a SiLU gate as one node of the library of CPU kernels, instead of six."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.kernels import Kernels


@dataclass(frozen=True)
class _GatedNorm:
    """A gated norm that ends with the Mul ``last``; weight [columns] or [size of a group]."""

    last: ir.Node
    x: ir.Value
    gate: ir.Value
    weight: ir.Value
    norm_first: bool


def use_gated_norms(model: ir.Model, kernels: Kernels) -> None:
    """Replace norm(x * silu(gate)) * weight and norm(x) * weight * silu(gate), of a graph in float32, by GatedNorm.

    The norm is RMSNormalization of the last axis, or of groups of it between two Reshapes. Nothing is replaced where
    the library cannot be compiled.
    """
    if not kernels.own_operators:
        return
    for norm in list(model.graph):
        if norm.op_type != "RMSNormalization" or norm.domain or norm.attributes.get_int("axis", -1) != -1:
            continue
        found, size = _gate_first(norm) or _norm_first(norm), _size(norm.inputs[1])
        if found is None or not size or not _sizes_match(found, size) or cpu_library().path is None:
            continue
        y = Inserter(model.graph, found.last).op(
            "GatedNorm",
            found.x,
            found.gate,
            found.weight,
            domain=CPU_DOMAIN,
            size=size,
            norm_first=int(found.norm_first),
            epsilon=norm.attributes.get_float("epsilon", 1e-5),
            instructions=0,
        )
        replace_node(found.last, [y])


def _gate_first(norm: ir.Node) -> _GatedNorm | None:
    """norm(x * silu(gate)) * weight, where the norm itself has no weight."""
    product, last = _producer(norm.inputs[0]), _next_product(norm)
    if product is None or product.op_type != "Mul" or last is None or not _is_one(norm.inputs[1]):
        return None
    gated, weight = _with_silu(product), _other_factor(last, norm)
    if gated is None or weight is None or weight.const_value is None:
        return None
    return _GatedNorm(last, *gated, weight, norm_first=False)


def _norm_first(norm: ir.Node) -> _GatedNorm | None:
    """norm(x) * weight * silu(gate), where the weight is the norm's own, or a factor after a norm without weight."""
    x, weight, last = _unreshaped(norm.inputs[0]), norm.inputs[1], _next_product(norm)
    factor = None if last is None else _other_factor(last, norm)
    if last is not None and factor is not None and factor.const_value is not None and _is_one(weight):
        weight, last = factor, _next_product(last)
    gate = None if last is None else _with_silu(last)
    if x is None or weight is None or weight.const_value is None or last is None or gate is None:
        return None
    return _GatedNorm(last, x, gate[1], weight, norm_first=True)


def _sizes_match(found: _GatedNorm, size: int) -> bool:
    """Whether all values have the same shape, of groups of ``size``, and the weight is of one group or of all."""
    values, weight = (found.x, found.gate, found.last.outputs[0]), fixed_shape(found.weight)
    # Symbolic sizes are compared by name: a gate of one row may be broadcast over the rows of x.
    shapes = [None if value.shape is None else tuple(value.shape.dims) for value in values]
    if not shapes[0] or shapes.count(shapes[0]) < len(shapes) or weight is None or len(weight) != 1:
        return False
    width = shapes[0][-1]
    return isinstance(width, int) and width % size == 0 and weight[0] in (width, size)


def _size(weight: ir.Value | None) -> int | None:
    """The number of elements of a norm's weight."""
    tensor = None if weight is None else ir.convenience.get_const_tensor(weight)
    return None if tensor is None or len(tensor.shape) != 1 else tensor.size


def _is_one(value: ir.Value | None) -> bool:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor is not None and bool(np.all(tensor.numpy() == 1))


def _with_silu(product: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """x and gate, if ``product`` is x * silu(gate)."""
    for x, factor in (product.inputs, product.inputs[::-1]):
        silu = None if factor is None else factor.producer()
        gate = None if silu is None or silu.domain or silu.op_type != "Mul" else _gate(silu)
        if x is not None and gate is not None:
            return x, gate
    return None


def _gate(product: ir.Node) -> ir.Value | None:
    """z, if ``product`` is z * sigmoid(z)."""
    for z, factor in (product.inputs, product.inputs[::-1]):
        sigmoid = None if factor is None else factor.producer()
        if z is not None and sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is z:
            return z
    return None


def _next_product(node: ir.Node) -> ir.Node | None:
    """The Mul that is the only reader of the output of ``node``, apart from Reshapes in between."""
    users = list(node.outputs[0].consumers())
    if len(users) != 1 or users[0].domain or node.outputs[0].is_graph_output():
        return None
    return _next_product(users[0]) if users[0].op_type == "Reshape" else users[0] if users[0].op_type == "Mul" else None


def _other_factor(product: ir.Node, norm: ir.Node) -> ir.Value | None:
    """The factor of ``product`` that does not come from ``norm``."""
    others = [value for value in product.inputs if value is not None and _producer(value) is not norm]
    return others[0] if len(others) == 1 else None


def _producer(value: ir.Value | None) -> ir.Node | None:
    source = _unreshaped(value)
    return None if source is None else source.producer()


def _unreshaped(value: ir.Value | None) -> ir.Value | None:
    """``value`` before all Reshapes."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Reshape":
        value = node.inputs[0]
    return value
