"""Models of one operator node with its function attached."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import onnx
from onnx import TensorProto, helper

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.spec import TensorSpec
from tests.ops.cases import in_dtypes
from tests.ops.oracle import Case

OPSETS = [helper.make_opsetid("", 24), helper.make_opsetid("trt_edgellm", 1)]


def node_model(
    op: str,
    types: dict[str, str],
    sizes: dict[str, int] | None = None,
    attributes: dict[str, object] | None = None,
    has_time: bool = True,
    wide_interface: bool = False,
    attach: bool = True,
) -> onnx.ModelProto:
    """One node whose inputs and outputs are the model's.

    types: input name to type; an input left out is absent. sizes: dims that are static, the others are symbolic.
    wide_interface: floating point inputs and outputs are float32, with casts between them and the node.
    """
    spec = OPS[op]
    types = {**types, "context_lengths": "int32"}
    dtypes = {name: DType(dtype) for name, dtype in types.items()}
    output_types = [dtypes[spec.inputs[spec.output_source(output)].name] for output in spec.outputs]

    def info(tensor: TensorSpec, name: str, dtype: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, [(sizes or {}).get(d, d) for d in tensor.dims_for(has_time)])

    inputs = [tensor for tensor in spec.inputs if tensor.name in dtypes]
    names = [tensor.name if tensor.name in dtypes else "" for tensor in spec.inputs]
    results = [output.name for output in spec.outputs]
    nodes = [helper.make_node(op, names, results, name="node", domain=spec.domain, **(attributes or {}))]
    graph_inputs = [info(t, t.name, dtypes[t.name].onnx) for t in inputs]
    graph_outputs = [info(o, o.name, t.onnx) for o, t in zip(spec.outputs, output_types, strict=True)]
    inner: list[onnx.ValueInfoProto] = []
    if wide_interface:
        floating = [t for t in inputs if dtypes[t.name].is_floating]
        inner = [*(v for v in graph_inputs if v.name != "context_lengths"), *graph_outputs]
        casts_in = [helper.make_node("Cast", [f"{t.name}_wide"], [t.name], to=dtypes[t.name].onnx) for t in floating]
        casts_out = [helper.make_node("Cast", [name], [f"{name}_wide"], to=TensorProto.FLOAT) for name in results]
        nodes = [*casts_in, *nodes, *casts_out]
        graph_inputs = [info(t, f"{t.name}_wide", TensorProto.FLOAT) for t in floating] + [graph_inputs[-1]]
        graph_outputs = [info(o, f"{o.name}_wide", TensorProto.FLOAT) for o in spec.outputs]
    graph = helper.make_graph(nodes, "one_node", graph_inputs, graph_outputs, value_info=inner)
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    if attach:
        attach_functions(model)
    return model


def wide_feeds(case: Case) -> dict[str, np.ndarray]:
    """Feeds of a model with a wide interface."""
    arrays = {f.name: getattr(case, f.name) for f in fields(case) if getattr(case, f.name) is not None}
    lengths = arrays.pop("context_lengths")
    return {**{f"{name}_wide": a.astype(np.float32) for name, a in arrays.items()}, "context_lengths": lengths}


def types_of(case: Case, data: str, **special: str) -> dict[str, str]:
    """``in_dtypes`` without the inputs that the case leaves out."""
    return {name: t for name, t in in_dtypes(case, data, **special).items() if getattr(case, name) is not None}
