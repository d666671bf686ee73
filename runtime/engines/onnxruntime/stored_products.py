"""Products by the operator Linear, which reads matrices of 4, 8 and 16 bits."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight, part_of
from hybridge.runtime.engines.onnxruntime.linear_form import FEWEST_FLOATS
from hybridge.runtime.engines.onnxruntime.linear_weight import LinearWeight
from hybridge.runtime.engines.onnxruntime.quantized_weights import remove_unused
from hybridge.runtime.engines.onnxruntime.session_graph import StoredTensor

OPERATOR = "Linear"


def use_stored_products(model: ir.Model, exact: bool) -> None:
    """Replace FusedMatMul(x, weight, transB=1) over a matrix that Linear reads; exact: do not round x.

    Nothing is replaced where the library cannot be compiled.
    """
    graph = model.graph
    nodes = [node for node in graph if node.op_type == "FusedMatMul" and node.attributes.get_int("transB", False)]
    for node in nodes:
        value = node.inputs[1]
        weight = None if value is None else _linear_weight(value)
        if value is None or weight is None or cpu_library().path is None:
            continue
        inputs = (node.inputs[0], *weight.inputs(graph))
        attributes = {"rows": weight.rows, "instructions": 0, **weight.attributes(exact)}
        replace_node(node, [Inserter(graph, node).op(OPERATOR, *inputs, domain=CPU_DOMAIN, **attributes)])
        remove_unused(graph, value)


def _linear_weight(value: ir.Value) -> LinearWeight | None:
    """The matrix ``value`` in the artifact's files; None for one that Linear does not read, or few 16-bit numbers."""
    if not isinstance(value.const_value, ir.ExternalTensor) or joined_weight(value):
        return None
    part = part_of(value)
    if len(part.shape) != 2 or (isinstance(part, StoredTensor) and prod(part.shape) < FEWEST_FLOATS):
        return None
    weight = LinearWeight(str(value.name), (part,), *part.shape)
    return weight if weight.is_supported else None
