"""Routed experts by the operator RoutedExperts, which reads matrices of 4, 8 and 16 bits."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight, part_of
from hybridge.runtime.engines.onnxruntime.linear_form import ACTIVATIONS
from hybridge.runtime.engines.onnxruntime.linear_tiles import TILE_ROWS
from hybridge.runtime.engines.onnxruntime.linear_weight import LinearWeight
from hybridge.runtime.engines.onnxruntime.quantized_weights import remove_unused
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

OPERATOR = "RoutedExperts"
# Inputs with zero points follow the biases.
_ZEROS_INPUT = 9


def use_stored_experts(model: ir.Model, exact: bool) -> None:
    """Replace routed_experts over matrices that RoutedExperts reads; exact: do not round inputs.

    Otherwise rounded_experts too. Nothing is replaced where the library cannot be compiled.
    """
    operators = ("routed_experts",) if exact else ("routed_experts", "rounded_experts")
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type not in operators:
            continue
        form = ExpertActivation.of(op_attributes(node))
        up, down = (_linear_weight(value) for value in node.inputs[3:5])
        if up is None or down is None or form.name not in ACTIVATIONS or cpu_library().path is None:
            continue
        biases = [*node.inputs[spec_of(node.op_type).input_index("up_bias") :]]
        attributes: dict[str, Any] = {
            **{f"up_{name}": value for name, value in up.attributes(exact).items()},
            **{f"down_{name}": value for name, value in down.attributes(exact).items()},
            **{"experts": down.rows // up.columns, "size": down.columns, "instructions": 0},
            **{"activation": ACTIVATIONS[form.name], "gated": int(form.gated)},
            **{"alpha": form.alpha, "limit": form.limit, "offset": form.offset},
        }
        (up_matrix, up_scales, up_zeros), (down_matrix, down_scales, down_zeros) = (
            weight.inputs(model.graph) for weight in (up, down)
        )
        inputs = [*node.inputs[:3], up_matrix, up_scales, down_matrix, down_scales, *biases]
        if up_zeros is not None or down_zeros is not None:
            inputs += [None] * (_ZEROS_INPUT - len(inputs)) + [up_zeros, down_zeros]
        y = Inserter(model.graph, node).op(OPERATOR, *inputs, domain=CPU_DOMAIN, **attributes)
        weights = node.inputs[3:5]
        replace_node(node, [y])
        for weight in weights:
            assert weight is not None
            remove_unused(model.graph, weight)


def _linear_weight(value: ir.Value | None) -> LinearWeight | None:
    """The matrices of all experts in ``value`` [experts, rows, columns]; None where the operator does not read them."""
    shape, joined = fixed_shape(value), None if value is None else joined_weight(value)
    if value is None or shape is None or len(shape) != 3 or (joined is not None and joined.interleaved):
        return None
    if joined is None and not isinstance(value.const_value, ir.ExternalTensor):
        return None
    parts = (part_of(value),) if joined is None else joined.parts
    experts, rows, columns = (size or 0 for size in shape)
    weight = LinearWeight(str(value.name), parts, experts * rows, columns)
    # A tile has rows of one expert.
    is_split = weight.is_tiled and rows % TILE_ROWS > 0
    return None if is_split or not weight.is_supported else weight
