"""Calls of functions with quantising nodes: same results in ONNX Runtime, and no layer name twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from hybridge.trt_plugins.rewrites.layer_names import name_layers_apart

FLOAT, DOMAIN = TensorProto.FLOAT, "example"


def rounding_model() -> onnx.ModelProto:
    """Two calls of a function that rounds in a subgraph, and one of a function without quantising nodes."""
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    quantise = [
        helper.make_node("QuantizeLinear", ["x", "one"], ["q"], "quantize", output_dtype=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["q", "one"], ["rounded"], "dequantize"),
    ]
    keep = [helper.make_node("Identity", ["x"], ["kept"], "identity")]
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, FLOAT, None)])
        for name, nodes, output in (("then", quantise, "rounded"), ("else", keep, "kept"))
    }
    always = helper.make_node("Constant", [], ["always"], value=helper.make_tensor("", TensorProto.BOOL, [], [True]))
    # The newest opset whose QuantizeLinear ONNX Runtime 1.23 runs.
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid(DOMAIN, 1)]
    round_, double = (
        helper.make_function(DOMAIN, name, ["x"], ["y"], nodes, opsets)
        for name, nodes in (
            ("round", [one, always, helper.make_node("If", ["always"], ["y"], "choose", **branches)]),
            ("double", [helper.make_node("Add", ["x", "x"], ["y"], "add")]),
        )
    )
    calls = [
        helper.make_node(operator, [x], [y], f"call_{y}", domain=DOMAIN)
        for operator, x, y in (("round", "x", "a"), ("double", "a", "b"), ("round", "b", "y"))
    ]
    values = [helper.make_tensor_value_info(name, FLOAT, [5]) for name in "xy"]
    graph = helper.make_graph(calls, "rounding", values[:1], values[1:])
    return helper.make_model(graph, functions=[round_, double], opset_imports=opsets, ir_version=10)


def names_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield node.name
        for attribute in node.attribute:
            yield from names_in(attribute.g.node)


def test_each_call_has_layers_of_its_own_name() -> None:
    x = np.array([0.4, 0.6, -1.5, 2.5, 300.0], np.float32)
    model, options = rounding_model(), ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # The least multiple of 1 in int8, twice.
    expected = np.clip(2 * np.clip(np.round(x), -128, 127), -128, 127)
    for _ in range(2):
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        name_layers_apart(model)
        onnx.checker.check_model(model)
    functions = {function.name: function for function in model.functions}
    assert len(functions) == 3 and "double" in functions
    names = [name for f in model.functions for name in names_in(f.node) if "quantize" in name]
    assert len(names) == len(set(names)) == 4


def test_a_model_without_quantising_functions_is_unchanged() -> None:
    model = rounding_model()
    del model.graph.node[::2]
    model.functions.remove(model.functions[0])
    before = model.SerializeToString()
    name_layers_apart(model)
    assert model.SerializeToString() == before
