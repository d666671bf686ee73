"""Replace the weights of a rewritten graph by placeholders, and list what fills them."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight, part_of
from hybridge.runtime.engines.onnxruntime.quantized_weights import weight_form
from hybridge.runtime.engines.onnxruntime.session_graph import WHOLE, GraphWeight

# By number of axes: (operator, input) pairs that read a weight in place.
_READERS = {
    1: {("MatMulNBits", 2), ("MatMulNBits", 3)},
    2: {
        *(("Linear", index) for index in (1, 2, 3)),
        *(("FusedLinear", index) for index in range(3, 15)),
        *(("RoutedExperts", index) for index in (3, 4, 5, 6, 9, 10)),
        ("Gather", 0),
        ("FusedMatMul", 0),
        ("FusedMatMul", 1),
        ("Gemm", 1),
        ("MatMul", 1),
    },
    3: {
        ("MatMulNBits", 1),
        *(("MoE", index) for index in (2, 4)),
        *(("QMoE", index) for index in (2, 3, 5, 6, 11, 12)),
        *((name, index) for name in ("routed_experts", "rounded_experts") for index in (3, 4)),
    },
}


def serialised_model(model: ir.Model) -> tuple[bytes, tuple[GraphWeight, ...]]:
    """``model`` as bytes, its external initializers replaced by placeholders, and what fills these."""
    weights = tuple(
        _placeholder(name, value)
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    )
    return ir.to_proto(model).SerializeToString(), weights


def _placeholder(name: str, value: ir.Value) -> GraphWeight:
    """Make ``value`` a reference to a file, which ONNX Runtime allows to be replaced, in the graph's type."""
    joined, form, tensor = joined_weight(value), weight_form(value), value.const_value
    assert isinstance(tensor, ir.ExternalTensor)
    if form is not None:
        shared = _is_shared(value)
        weight = GraphWeight(name, form.parts, None, False, shared, form.form, form.block, form.packed)
    else:
        weight = GraphWeight(
            name,
            (part_of(value),) if joined is None else joined.parts,
            None if joined is None else joined.shape,
            joined is not None and joined.interleaved,
            _is_shared(value),
            WHOLE if joined is None else joined.form,
            0 if joined is None else joined.block,
        )
    assert value.dtype is not None
    value.const_value = ir.ExternalTensor(
        weight.parts[0].location, None, None, value.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
    )
    return weight


def _is_shared(value: ir.Value) -> bool:
    """True for a matrix, or one of each expert, that only Gather and products read."""
    rank = 0 if value.shape is None else len(value.shape)
    return rank in _READERS and all((node.op_type, index) in _READERS[rank] for node, index in value.uses())
