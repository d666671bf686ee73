"""Each rewriting pass on a small graph made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.attention import use_group_query_attention
from hybridge.runtime.engines.onnxruntime.columns import SMALLEST_WEIGHT, put_weights_left
from hybridge.runtime.engines.onnxruntime.fixed_axes import fix_axes
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.graph_form import LAST_POSITIONS, GraphForm
from hybridge.runtime.engines.onnxruntime.in_place import updates_in_place
from hybridge.runtime.engines.onnxruntime.kernels import Kernels, installed_kernels, quiet_options
from hybridge.runtime.engines.onnxruntime.linear import use_stored_weights
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.reshapes import join_reshapes, reshape_gathers_of_one
from hybridge.runtime.engines.onnxruntime.rewrite import rewrite
from hybridge.runtime.engines.onnxruntime.widen_types import widen_types
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.onnxruntime.steps import relative_error

FLOAT, HALF, BRAIN = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
KERNELS = installed_kernels()


def graph_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list]],
    outputs: dict[str, tuple[int, list]],
    weights: dict[str, np.ndarray] | None = None,
    inner: dict[str, tuple[int, list]] | None = None,
) -> ir.Model:
    def values(declared: dict[str, tuple[int, list]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in declared.items()]

    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), initializers, value_info=values(inner or {}))
    opsets = [helper.make_opsetid("", min(24, KERNELS.opset)), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def run(model: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    data = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(data, quiet_options(), providers=["CPUExecutionProvider"]).run(None, feeds)


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("narrow", "dtype"), [(HALF, np.float16), (BRAIN, ml_dtypes.bfloat16)])
def test_widening_leaves_one_type_and_no_cast(narrow: int, dtype: type) -> None:
    weight: np.ndarray = random(3, 4).astype(dtype)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=narrow),
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, dtype))),
        helper.make_node("Mul", ["narrow", "two"], ["twice"]),
        helper.make_node("MatMul", ["twice", "w"], ["y"]),
        helper.make_node("Cast", ["y"], ["logits"], to=FLOAT),
    ]
    inner = {name: (narrow, ["n", 3]) for name in ("narrow", "twice")} | {"y": (narrow, ["n", 4])}
    model = graph_of(nodes, {"x": (FLOAT, ["n", 3])}, {"logits": (FLOAT, ["n", 4])}, {"w": weight}, inner)
    widen_types(model)
    assert op_types(model) == ["Constant", "Mul", "MatMul"]
    x = random(2, 3)
    expected = 2.0 * x.astype(np.float64) @ weight.astype(np.float64)
    assert relative_error(run(model, x=x)[0], expected) < 1e-6


def test_widening_reaches_functions_and_keeps_other_types() -> None:
    function = helper.make_function(
        "local",
        "half",
        ["x"],
        ["y"],
        [
            helper.make_node("Cast", ["x"], ["h"], to=HALF),
            helper.make_node("Add", ["h", "h"], ["y"]),
        ],
        [helper.make_opsetid("", 21)],
    )
    nodes = [helper.make_node("half", ["x"], ["y"], domain="local"), helper.make_node("Cast", ["y"], ["n"], to=7)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1])],
        [helper.make_tensor_value_info("n", 7, [1])],
        value_info=[helper.make_tensor_value_info("y", HALF, [1])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10))
    widen_types(model)
    # 2049 has no float16: a narrow sum would give 4096.
    assert run(model, x=np.array([2049], np.float32))[0].tolist() == [4098]


@pytest.mark.parametrize("rows", [[5], [2, 5]], ids=["matrix", "batch"])
def test_linear_layers_read_the_weight_as_it_is_stored(rows: list[int]) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    weight = random(7, 3)
    shape = [*rows, 3]
    model = graph_of(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, [*rows, 7])}, {"w": weight})
    use_stored_weights(model)
    remove_dead_code(model)
    assert op_types(model) == ["FusedMatMul"]
    x = random(*shape, seed=1)
    assert relative_error(run(model, x=x)[0], x.astype(np.float64) @ weight.T.astype(np.float64)) < 1e-6


def test_gemm_reads_the_weight_as_it_is_stored() -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("Gemm", ["x", "t", "b"], ["y"])]
    weight, bias = random(7, 3), random(7, seed=2)
    model = graph_of(nodes, {"x": (FLOAT, [5, 3])}, {"y": (FLOAT, [5, 7])}, {"w": weight, "b": bias})
    use_stored_weights(model)
    remove_dead_code(model)
    assert op_types(model) == ["Gemm"]
    x = random(5, 3, seed=1)
    assert relative_error(run(model, x=x)[0], x.astype(np.float64) @ weight.T + bias) < 1e-6


def test_a_transposed_activation_is_no_weight() -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    model = graph_of(nodes, {"x": (FLOAT, [5, 3]), "w": (FLOAT, [7, 3])}, {"y": (FLOAT, [5, 7])})
    use_stored_weights(model)
    assert op_types(model) == ["Transpose", "MatMul"]


@pytest.mark.parametrize("axes", [[], [1]], ids=["two_axes", "three_axes"])
def test_weights_go_left_for_a_token_per_row(axes: list[int]) -> None:
    columns = 65
    weight = random(SMALLEST_WEIGHT // columns + 1, columns)
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1)
    model = graph_of(
        [node], {"x": (FLOAT, ["b", *axes, columns])}, {"y": (FLOAT, ["b", *axes, len(weight)])}, {"w": weight}
    )
    put_weights_left(model)
    product = next(node for node in model.graph if node.op_type == "FusedMatMul")
    assert product.inputs[0] is model.graph.initializers["w"]
    x = random(3, *axes, columns, seed=1)
    found = run(model, x=x)[0]
    assert found.shape == (3, *axes, len(weight))
    assert relative_error(found, x.astype(np.float64) @ weight.T.astype(np.float64)) < 1e-6


def test_small_weights_stay_right() -> None:
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1)
    model = graph_of([node], {"x": (FLOAT, ["b", 4])}, {"y": (FLOAT, ["b", 5])}, {"w": random(5, 4)})
    put_weights_left(model)
    assert op_types(model) == ["FusedMatMul"]


def test_fixed_axes_are_numbers_everywhere_and_others_stay() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    shape = ["batch", "seq", "max_seq", 4]
    model = graph_of(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)}, inner={"h": (FLOAT, shape)})
    fix_axes(model, {"batch": 1, "seq": 1})
    for value in (model.graph.inputs[0], model.graph[0].outputs[0], model.graph.outputs[0]):
        assert [str(size) for size in value.shape or ()] == ["1", "1", "max_seq", "4"]


def state_graph(*nodes: onnx.NodeProto) -> tuple[ir.Value, ir.Value]:
    model = graph_of(
        list(nodes),
        {"x": (FLOAT, [1, 3]), "past": (FLOAT, [1, 3])},
        {"present": (FLOAT, [1, 3]), "y": (FLOAT, None)},  # type: ignore[dict-item]
    )
    return model.graph.inputs[1], model.graph.outputs[0]


IN_PLACE = {
    "read_before_the_writer": (
        [("Neg", ["past"], ["h"]), ("Add", ["h", "x"], ["present"]), ("Neg", ["present"], ["y"])],
        True,
    ),
    "read_by_the_writer": ([("Add", ["past", "x"], ["present"]), ("Neg", ["x"], ["y"])], False),
    "read_by_a_bystander": (
        [("Neg", ["past"], ["h"]), ("Add", ["h", "x"], ["present"]), ("Neg", ["past"], ["y"])],
        False,
    ),
    "view_read_by_a_bystander": (
        [("Identity", ["past"], ["v"]), ("Neg", ["v"], ["h"]), ("Add", ["h", "x"], ["present"]), ("Neg", ["v"], ["y"])],
        False,
    ),
    "never_read": ([("Neg", ["x"], ["present"]), ("Neg", ["x"], ["y"])], True),
}


@pytest.mark.parametrize(("nodes", "expected"), IN_PLACE.values(), ids=IN_PLACE)
def test_in_place_needs_every_reader_before_the_writer(nodes: list[tuple], expected: bool) -> None:
    assert updates_in_place(*state_graph(*(helper.make_node(*node) for node in nodes))) is expected


def test_a_hand_made_artifact_keeps_no_portable_operator(tmp_path: Path) -> None:
    made = HandMade(Plan(dtype=DType.BFLOAT16))
    folder = made.write(tmp_path / "artifact")
    for form in GraphForm:
        graph = rewrite(ir.load(folder / "model.onnx"), made.config(), form, KERNELS)
        found = set(op_types(graph.model))
        assert found.isdisjoint({"TensorScatter", "Attention"})
        assert not graph.model.functions
        assert graph.in_place == {spec.name for spec in made.config().bindings.states}


def test_a_window_that_the_kernel_does_not_run_keeps_its_function(tmp_path: Path) -> None:
    made = HandMade(Plan(layers="a", window=1))
    folder = made.write(tmp_path / "artifact")
    graph = rewrite(ir.load(folder / "model.onnx"), made.config(), GraphForm.GENERAL, replace(KERNELS, window_margin=1))
    assert "cached_attention" in op_types(graph.model) and LAST_POSITIONS not in graph.inputs


def test_attention_without_its_step_is_refused(tmp_path: Path) -> None:
    model = ir.load(HandMade(Plan(layers="a")).write(tmp_path / "artifact") / "model.onnx")
    node = next(node for node in model.graph if node.op_type == "cached_attention")
    node.replace_input_with(9, ir.Value(name="other"))
    with pytest.raises(EngineError, match=r"expected attention_step before cached_attention.*export the checkpoint"):
        use_group_query_attention(model, KERNELS, padded=True)


def test_an_older_opset_loses_new_attributes_and_refuses_new_operators() -> None:
    old = Kernels(opset=23, recurrent_ops=False, experts=False, window_margin=1)
    node = helper.make_node("Cast", ["x"], ["y"], to=7)
    node.attribute.append(helper.make_attribute("round_mode", "up"))
    model = graph_of([node], {"x": (FLOAT, [1])}, {"y": (7, [1])})
    model.graph.opset_imports[""] = 24
    lower_opset(model, old)
    assert model.graph.opset_imports[""] == 23
    assert list(model.graph[0].attributes) == ["to"]
    scatter = helper.make_node("TensorScatter", ["x", "x"], ["y"])
    model = graph_of([scatter], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    model.graph.opset_imports[""] = 24
    with pytest.raises(EngineError, match=r"TensorScatter.*install onnxruntime 1\.24"):
        lower_opset(model, old)


def test_reshapes_that_lead_back_to_a_shape_disappear() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["heads"]),
        helper.make_node("Reshape", ["heads", "flat"], ["back"]),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    shapes = {"split": np.array([0, 0, 2, 3]), "flat": np.array([0, 0, 6])}
    inner = {"heads": (FLOAT, ["b", "t", 2, 3]), "back": (FLOAT, ["b", "t", 6])}
    model = graph_of(nodes, {"x": (FLOAT, ["b", "t", 6])}, {"y": (FLOAT, ["b", "t", 6])}, shapes, inner)
    join_reshapes(model)
    remove_dead_code(model)
    assert op_types(model) == ["Neg"]


@pytest.mark.parametrize(("tokens", "expected"), [(1, ["Reshape"]), (2, ["GatherND"])])
def test_the_last_of_one_token_is_not_gathered(tokens: int, expected: list[str]) -> None:
    node = helper.make_node("GatherND", ["x", "index"], ["y"], batch_dims=1)
    shapes = {"index": np.array([[0], [0], [0]])}
    model = graph_of([node], {"x": (FLOAT, [3, tokens, 6])}, {"y": (FLOAT, [3, 6])}, shapes)
    reshape_gathers_of_one(model)
    remove_dead_code(model)
    assert op_types(model) == expected


def test_a_reshape_that_undoes_an_unsqueeze_disappears() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["column"]),
        helper.make_node("Reshape", ["column", "flat"], ["back"]),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    shapes = {"axis": np.array([2]), "flat": np.array([0, 0])}
    inner = {"column": (FLOAT, ["b", 6, 1]), "back": (FLOAT, ["b", 6])}
    model = graph_of(nodes, {"x": (FLOAT, ["b", 6])}, {"y": (FLOAT, ["b", 6])}, shapes, inner)
    join_reshapes(model)
    remove_dead_code(model)
    assert op_types(model) == ["Neg"]


def test_a_chain_of_reshapes_becomes_one() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["heads"]),
        helper.make_node("Unsqueeze", ["heads", "axis"], ["rows"]),
        helper.make_node("Reshape", ["rows", "joined"], ["pairs"]),
        helper.make_node("Neg", ["pairs"], ["y"]),
    ]
    shapes = {"split": np.array([0, 2, 6]), "axis": np.array([1]), "joined": np.array([-1, 3, 4])}
    model = graph_of(nodes, {"x": (FLOAT, ["b", 12])}, {"y": (FLOAT, ["b", 3, 4])}, shapes)
    join_reshapes(model)
    remove_dead_code(model)
    assert op_types(model) == ["Reshape", "Neg"]
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    np.testing.assert_array_equal(run(model, x=x)[0], -x.reshape(5, 3, 4))


@pytest.mark.parametrize("axis", ["c", None])
def test_one_unknown_size_is_what_the_others_leave(axis: str | None) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["heads"]),
        helper.make_node("Reshape", ["heads", "flat"], ["back"]),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    shapes = {"split": np.array([0, 2, 3]), "flat": np.array([-1, 6])}
    inner = {"heads": (FLOAT, ["b", 2, 3]), "back": (FLOAT, [axis, 6])}
    model = graph_of(nodes, {"x": (FLOAT, ["b", 6])}, {"y": (FLOAT, ["b", 6])}, shapes, inner)
    join_reshapes(model)
    remove_dead_code(model)
    assert op_types(model) == ["Neg"]
    assert list(model.graph.inputs[0].shape or ()) == [ir.SymbolicDim("b"), 6]


def test_reshapes_to_unknown_shapes_stay() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["heads"]),
        helper.make_node("Reshape", ["heads", "shape"], ["back"]),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    inner = {"heads": (FLOAT, ["b", 2, 3]), "back": (FLOAT, ["c", "d"])}
    inputs = {"x": (FLOAT, ["b", 6]), "shape": (TensorProto.INT64, [2])}
    model = graph_of(nodes, inputs, {"y": (FLOAT, ["c", "d"])}, {"split": np.array([0, 2, 3])}, inner)
    join_reshapes(model)
    assert op_types(model) == ["Reshape", "Reshape", "Neg"]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(run(model, x=x, shape=np.array([3, 4]))[0], -x.reshape(3, 4))
