"""Attaching functions to a model, and the check of its operator nodes."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.errors import ExportError, UnsupportedError
from hybridge.trt_plugins.checks import check_op_nodes
from hybridge.trt_plugins.functions import attach_functions
from tests.ops.cases import conv_case, ssm_case
from tests.ops.node_model import OPSETS, node_model, types_of

SSM_TYPES = types_of(ssm_case((1,), 1), "float16")
CONV_TYPES = types_of(conv_case((1,), 1), "float16")
SSM_SIZES = {"heads": 6, "groups": 3, "head_dim": 5, "state_size": 7}


def two_convs(second_activation: str) -> onnx.ModelProto:
    """y of the first convolution feeds the second; the middle value has no value_info."""
    info = helper.make_tensor_value_info
    state, lengths = info("state", TensorProto.FLOAT, ["b", 3, 2]), info("lengths", TensorProto.INT32, ["b"])
    x, y = info("x", TensorProto.FLOAT, ["b", "t", 3]), info("y", TensorProto.FLOAT, ["b", "t", 3])
    weight = numpy_helper.from_array(np.ones((3, 1, 2), np.float32), "weight")
    nodes = [
        helper.make_node(
            "causal_conv1d", [source, "weight", "", "state", "lengths"], [result, f"{result}_state"], name=result,
            domain="trt_edgellm", activation=activation,
        )
        for source, result, activation in (("x", "middle", "silu"), ("middle", "y", second_activation))
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "two", [x, state, lengths], [y], [weight])
    return helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=10)


def test_one_function_serves_equal_nodes_and_the_domain_is_imported() -> None:
    model = two_convs("silu")
    attach_functions(model)
    attach_functions(model)
    assert [(f.domain, f.name) for f in model.functions] == [("trt_edgellm", "causal_conv1d")]
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 24), ("trt_edgellm", 1)}
    onnx.checker.check_model(model, full_check=True)


def test_absent_bias_becomes_shared_zeros() -> None:
    model = two_convs("silu")
    attach_functions(model)
    assert [node.input[2] for node in model.graph.node] == ["trt_edgellm.zeros.float32.3"] * 2
    (zeros,) = [t for t in model.graph.initializer if t.name != "weight"]
    np.testing.assert_array_equal(numpy_helper.to_array(zeros), np.zeros(3, np.float32))


def test_symbolic_width_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="constant kernel"):
        node_model("causal_conv1d", CONV_TYPES, {"conv_dim": 7})


def test_model_whose_types_cannot_be_inferred_is_refused() -> None:
    model = two_convs("silu")
    with pytest.raises(ExportError, match="No opset import for domain trt_edgellm"):
        check_op_nodes(model)


def test_nodes_that_need_different_bodies_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="different attributes in middle and y"):
        attach_functions(two_convs("none"))


def test_other_opset_is_refused() -> None:
    model = two_convs("silu")
    model.opset_import[0].version = 23
    with pytest.raises(UnsupportedError, match="opset 24, found 23"):
        attach_functions(model)


def test_checked_nodes_tell_what_the_kernels_lack() -> None:
    model = node_model("update_ssm_state", SSM_TYPES, SSM_SIZES)
    (node,) = check_op_nodes(model)
    assert node.call.attributes["time_step_max"] == math.inf
    assert len(node.kernel_gaps()) == 2
    fast = node_model("update_ssm_state", SSM_TYPES, {**SSM_SIZES, "head_dim": 64, "state_size": 128})
    assert check_op_nodes(fast)[0].kernel_gaps() == ()


@pytest.mark.parametrize(
    ("op", "types", "attributes", "words"),
    [
        ("update_ssm_state", {**SSM_TYPES, "A": "float16"}, {}, "A of type float32, found float16"),
        ("update_ssm_state", {**SSM_TYPES, "A": "bfloat16"}, {}, "A of type float32, found bfloat16"),
        ("update_ssm_state", {**SSM_TYPES, "dt": "float32"}, {}, "dt of type float16, found float32"),
        ("update_ssm_state", dict.fromkeys(SSM_TYPES, "float64"), {}, "x of type float16"),
        ("causal_conv1d", CONV_TYPES, {"activation": "relu"}, "activation to be one of"),
        ("causal_conv1d", CONV_TYPES, {"stride": 2}, "found stride"),
        ("causal_conv1d", {n: t for n, t in CONV_TYPES.items() if n != "weight"}, {}, "input weight, found none"),
    ],
    ids=str,
)
def test_node_that_breaks_its_declaration_is_named(op: str, types: dict, attributes: dict, words: str) -> None:
    model = node_model(op, types, SSM_SIZES, attributes, attach=False)
    with pytest.raises(ExportError, match=f"node node: .*{words}"):
        check_op_nodes(model)


def test_wrong_output_type_and_count_are_named() -> None:
    model = node_model("causal_conv1d", CONV_TYPES, attach=False)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(ExportError, match="output y of type float16, found float32"):
        check_op_nodes(model)
    del model.graph.node[0].output[1]
    with pytest.raises(ExportError, match="expected 2 outputs, found 1"):
        check_op_nodes(model)


def test_unknown_operator_is_named() -> None:
    model = node_model("causal_conv1d", CONV_TYPES, attach=False)
    model.graph.node[0].op_type = "causal_conv2d"
    with pytest.raises(ExportError, match="found causal_conv2d"):
        check_op_nodes(model)


@pytest.mark.parametrize(
    ("op", "types", "most"), [("causal_conv1d", CONV_TYPES, 60), ("update_ssm_state", SSM_TYPES, 140)]
)
def test_bodies_stay_small(op: str, types: dict, most: int) -> None:
    (function,) = node_model(op, types, {"kernel": 4}).functions
    assert len(function.node) <= most
